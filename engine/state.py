"""EngineState: everything the engine knows between two steps, and the moves that keep it consistent.

Owns the queues, the ledger, memory, the steps in flight and the outbox. Knows no action and no thread. Only the
engine's background thread touches it.

Each open answer of a request is in exactly one of three places until it finishes, which happens once:

    waiting --admit--> prefilling --all chunks submitted--> running
       ^  (slot, pages of what is known)                       |
       '------------------------ preempt ----------------------'

A running sequence takes a page when it reaches one. Where none can be had, the youngest that holds memory gives way:
its pages go to the prefix cache, and it waits again at its place by arrival. Why everything ends all the same:

- The oldest that holds memory never gives way. Whatever it lacks is free, leaving with a step in flight, in the cache,
  or held by a younger one that gives way; nobody is admitted while it lacks a page that it has reached; and no request
  is accepted that needs more than all pages which are not pinned. So it gets its page when the steps in flight have
  retired, and draws to its end, for `limit` bounds its tokens.
- The oldest of all that are open is overtaken at most MAX_OVERTAKEN times while it waits. From then on nobody is
  admitted before it. Those that hold memory end one after another by the line above, or give way and wait behind it.
  When nobody holds memory it fits. Once admitted it is the oldest that holds memory.
- Only finitely many are older than a given request, so by induction it becomes the oldest, and ends.

With a window (engine/window.py) a sequence drops the pages that its next row does not reach, and takes those of its
prompt too when it reaches them. All this holds as it stands, with "the pages that it needs" read as those that it needs
at once: it is admitted only where so many can be had (or one more than its tokens fill), and what the chunk of a prompt
takes beyond the page that it has reached is taken from nobody.

Giving way costs computing again, never tokens: what was committed and told stays, and what is in flight is committed
when it retires. A page is taken from the youngest only because an older one goes on by a page's worth of tokens, and
the older ones' tokens are finite; so nobody gives way for ever.
"""

from __future__ import annotations

import logging
import time
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from engine.emission import Emission
from engine.function_table import PAGE_SIZE, FunctionTable
from engine.integrity import check_integrity
from engine.memory import Memory
from engine.metrics import EngineMetrics
from engine.open_request import OpenRequest
from engine.pacing import Pacer
from engine.request import FinishReason, TokenLogprobs
from engine.request_state import RequestState, Vocabulary, arrival_order
from engine.restoring import Restorer
from engine.saving import Saver, Saving
from engine.tiers.store import KvStore
from engine.trace import OFF, Trace

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class InFlightStep:
    """A submitted step: who took part, and who gets each drawn token, in the order of its samples.

    After the drawn samples come those of `scored`: prompt tokens whose logprobs were asked for. `chunks` says up to
    which position each prompt is computed when the step has retired.
    """

    number: int
    participants: list[RequestState]
    drawing: list[RequestState]
    chunks: list[tuple[RequestState, int]]
    scored: list[RequestState]
    num_prompt_rows: int
    started_at: float
    saving: Saving | None = None
    computes: bool = True
    """Not so for a step that only moves pages between the device and the host; `saving` says what it reads."""


class EngineState:
    """See the module's docstring. `clock` counts seconds and never goes back."""

    def __init__(
        self,
        table: FunctionTable,
        vocabulary: Vocabulary,
        clock: Callable[[], float] = time.perf_counter,
        metrics: EngineMetrics | None = None,
        trace: Trace = OFF,
        store: KvStore | None = None,
    ) -> None:
        self.table = table
        self.store = store
        self.metrics = metrics or EngineMetrics()
        self.trace = trace
        self.limits = table.limits
        self.vocabulary = vocabulary
        self.clock = clock
        self.ledger: dict[str, OpenRequest] = {}
        self.num_requests = 0
        self.waiting: list[RequestState] = []
        self.prefilling: list[RequestState] = []
        self.running: list[RequestState] = []
        self.memory = Memory(table)
        self.pages = self.memory.pages
        self.slots = self.memory.slots
        self.cache = self.memory.cache
        self.pacer = Pacer(self.limits.max_rows)
        self.saver = Saver(store, self.pages, table)
        self.restorer = Restorer(store, self.memory, self.pacer)
        self.memory.release_held = self.saver.release_held
        self.memory.hurry_held = self.saver.hurry
        self.in_flight: deque[InFlightStep] = deque()
        self.last_retired_at = 0.0
        self.decode_owed = False
        """Somebody who could have gone on was left out of the last step, so decoding has the next one."""
        self._blocked: tuple[int, ...] = ()
        self.outbox: list[Emission] = []
        self.num_preempted = 0

    @property
    def max_tokens_in_pool(self) -> int:
        """Tokens of the longest sequence that can be computed with all the pages to itself."""
        num_pages = self.limits.num_pages - self.cache.num_pinned
        context_pages = -(-self.limits.context_length // PAGE_SIZE)
        if self.memory.window.most_pages(context_pages) <= num_pages:
            num_pages = max(num_pages, context_pages)
        return num_pages * PAGE_SIZE + 1

    def enqueue(self, opened: OpenRequest) -> None:
        """Enter a request, after all others; the caller has checked that it can be honoured."""
        self.ledger[opened.request.request_id] = opened
        for answer in opened.answers:
            answer.order = arrival_order(self.num_requests, answer.index)
            if answer.finish_reason is None:
                self.waiting.append(answer)
        self.num_requests += 1
        self.trace.phase(opened.request.request_id, "waiting")

    def is_ready(self, sequence: RequestState) -> bool:
        """Whether a waiting sequence has nothing in flight, and can fork from a prompt if it is meant to."""
        return sequence.last_step <= self.pages.last_retired and (sequence.root is None or sequence.root.has_started)

    def note_blocked(self) -> None:
        """Nobody could be admitted any more; not to be tried again before something changes."""
        self._blocked = self._circumstances()

    def forget_blocked(self) -> None:
        """Try again whatever happened."""
        self._blocked = ()

    @property
    def is_busy(self) -> bool:
        """Whether somebody waits for tokens that can be computed now."""
        return bool(self.running or self.prefilling or (self.waiting and not self.is_blocked()))

    def is_blocked(self) -> bool:
        """Whether all is as it was at the last note_blocked()."""
        return self._blocked == self._circumstances()

    def _circumstances(self) -> tuple[int, ...]:
        pages, queues = self.pages, (self.waiting, self.prefilling, self.running)
        moves = self.saver.num_queued, self.restorer.num_open
        return pages.num_free, pages.num_leaving, self.slots.num_free, self.cache.num_pages, *moves, *map(len, queues)

    def num_scored(self, sequence: RequestState) -> int | None:
        """Prompt tokens of the sequence that have their logprob; None where it need not see to any."""
        if sequence.index or sequence.request.prompt_logprobs is None:
            return None
        num_scored = len(self.ledger[sequence.request.request_id].prompt_logprobs)
        return None if num_scored == sequence.num_prompt - 1 else num_scored

    def admit(self, sequence: RequestState) -> None:
        """Memory has started it: queue what is to be computed of it, by arrival."""
        self.waiting.remove(sequence)
        insort(self.prefilling, sequence, key=_order)
        sequence.overtaken = 0
        sequence.score_from = self.num_scored(sequence) or 0
        if not sequence.index and not sequence.has_started and sequence.last_step == 0:
            self.ledger[sequence.request.request_id].num_cached = sequence.num_prefilled
            self.metrics.prefix_matched(sequence.num_prefilled)
        self.trace.phase(sequence.request.request_id, "prefill")

    def start_running(self, sequence: RequestState) -> None:
        """All that is known of it is submitted: from now on it decodes."""
        self.prefilling.remove(sequence)
        self.running.append(sequence)
        sequence.has_started = True
        self.trace.phase(sequence.request.request_id, "decode")

    def preempt(self, sequence: RequestState) -> None:
        """Take its memory, and let it wait at its place; what is in flight of it still counts."""
        self._place_of(sequence).remove(sequence)
        self.memory.let_go(sequence, keep=True)
        sequence.restored = False
        insort(self.waiting, sequence, key=_order)
        self.num_preempted += 1
        self.metrics.preempted()
        self.trace.phase(sequence.request.request_id, "waiting")

    def grow(self, sequence: RequestState) -> bool:
        """Take the page that the sequence has reached; False if it has to wait for it, or had to give way itself."""
        memory = self.memory
        memory.drop(sequence)
        while not memory.make_room(1, at_once=True):
            if memory.is_coming(1):
                return False
            holders = [*self.prefilling, *self.running]
            if len(holders) == 1:
                return False
            victim = max(holders, key=_order)
            self.preempt(victim)
            if victim is sequence:
                return False
        sequence.pages += memory.pages.take(1)
        # So that the next one need not wait for the steps in flight: what is evicted now is free when they retire.
        short = len(self.running) - self.pages.num_free - self.pages.num_leaving
        if short > 0:
            self.cache.evict(short, self.table.last_submitted)
        return True

    def pin(self, sequence: RequestState) -> None:
        """Keep the prompt, as far as the longest open request can do without its pages, and half of all pages."""
        num_pages = self.limits.num_pages
        longest = max(self.memory.num_pages_needed(opened.answers[0]) for opened in self.ledger.values())
        room = min(num_pages // 2, num_pages - longest) - self.cache.num_pinned
        if not self.cache.pin(sequence.request.prompt_ids, room):
            logger.warning("The prompt of request %s is not pinned: too little memory", sequence.request.request_id)

    def tell(self, sequence: RequestState, token_ids: tuple[int, ...], text: bytes) -> None:
        """Put into the outbox what a request has got."""
        request = sequence.request
        if request.n == 1 and request.logprobs is None and request.prompt_logprobs is None:
            self.outbox.append(Emission(request.request_id, token_ids, text))
            return
        logprobs, prompt_logprobs = self._logprobs(sequence, len(token_ids))
        self.outbox.append(
            Emission(
                request.request_id,
                token_ids,
                text,
                answer=sequence.index,
                logprobs=logprobs,
                prompt_logprobs=prompt_logprobs,
            )
        )

    def finish(
        self,
        sequence: RequestState,
        reason: FinishReason,
        *,
        error: str | None = None,
        token_ids: tuple[int, ...] = (),
        text: bytes = b"",
    ) -> None:
        """End an answer: take it out, recycle what it held, and tell its caller. An error ends the whole request."""
        if sequence.finish_reason is not None:
            return
        request_id = sequence.request.request_id
        opened = self.ledger[request_id]
        for ended in opened.answers if reason == "error" else (sequence,):
            if ended.finish_reason is None:
                self._close(ended, reason)
                opened.num_open -= 1
        usage = timings = None
        if not opened.num_open:
            del self.ledger[request_id]
            usage, timings = opened.usage, opened.timings
        logprobs, prompt_logprobs = self._logprobs(sequence, len(token_ids), opened)
        emission = Emission(
            request_id,
            token_ids,
            text + sequence.flush_text(),
            reason,
            error,
            usage,
            timings,
            sequence.index,
            logprobs,
            prompt_logprobs,
            opened.num_open,
        )
        self.outbox.append(emission)
        if usage is not None and timings is not None:
            latency_s = self.clock() - opened.arrived
            self.metrics.request_finished(reason, usage, timings, latency_s, sequence.request.n)
            self.trace.phase(request_id, None)
            logger.info(
                "Request %s: %d (%d cached) + %d tokens, first after %.3f s, %.1f tokens/s, %s",
                request_id,
                usage.prompt_tokens,
                usage.cached_tokens,
                usage.completion_tokens,
                timings.ttft_s,
                timings.decode_tokens_per_s,
                reason,
            )

    def end(self, opened: OpenRequest, reason: FinishReason, error: str | None = None) -> None:
        """End all answers of a request that are open."""
        for answer in opened.answers:
            self.finish(answer, reason, error=error)

    def fail(self, sequences: Iterable[RequestState], message: str) -> None:
        """End the requests of these, and no others, with an error."""
        for sequence in list(sequences):
            self.finish(sequence, "error", error=message)

    def retired(self, number: int) -> InFlightStep | None:
        """Account for a step that the device has finished; None for one whose submission was reported as failed."""
        self.metrics.step_retired(number, self.clock())
        self.pages.retire(number)
        self.slots.retire(number)
        if self.in_flight and self.in_flight[0].number == number:
            return self.in_flight.popleft()
        return None

    def note_gauges(self) -> None:
        """Tell metrics and trace how full queues and pages are."""
        pages = self.pages
        self.metrics.set_gauges(
            len(self.waiting),
            len(self.prefilling),
            len(self.running),
            pages.num_free,
            pages.count,
            self.cache.num_pages,
        )
        self.trace.counter("waiting", len(self.waiting))
        self.trace.counter("pages free", pages.num_free)

    def check_integrity(self) -> None:
        """Recount pages, slots, sequences and steps from scratch; AssertionError where the books don't balance."""
        check_integrity(self)

    def _place_of(self, sequence: RequestState) -> list[RequestState]:
        if sequence.slot < 0:
            return self.waiting
        return self.prefilling if sequence in self.prefilling else self.running

    def _close(self, sequence: RequestState, reason: FinishReason) -> None:
        self._place_of(sequence).remove(sequence)
        sequence.finish_reason = reason
        if sequence.slot >= 0:
            # What was computed by a step that went wrong is nothing to build on.
            if reason != "error":
                self.saver.note(sequence)
            self.memory.let_go(sequence, keep=reason != "error")

    def _logprobs(
        self, sequence: RequestState, num_told: int, opened: OpenRequest | None = None
    ) -> tuple[tuple[TokenLogprobs, ...], tuple[TokenLogprobs, ...]]:
        """Those of the last `num_told` tokens before an end that is not told, and once those of the prompt."""
        request = sequence.request
        logprobs: tuple[TokenLogprobs, ...] = ()
        prompt_logprobs: tuple[TokenLogprobs, ...] = ()
        if request.logprobs is not None:
            logprobs = tuple(sequence.logprobs[sequence.num_told : sequence.num_told + num_told])
            sequence.num_told += num_told
        if request.prompt_logprobs is not None and not sequence.index and not sequence.told_prompt:
            sequence.told_prompt = True
            prompt_logprobs = tuple((opened or self.ledger[request.request_id]).prompt_logprobs)
        return logprobs, prompt_logprobs


def _order(sequence: RequestState) -> int:
    return sequence.order

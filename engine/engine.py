"""Engine: one model's requests, advanced one step at a time. No thread, no lock, no text.

step() retires what the device has finished, then lets exactly one action submit work. What the requests have to say
collects in an outbox. Only the engine's background thread calls it (tests call it directly).
"""

from __future__ import annotations

import heapq
import logging
import time
from collections.abc import Callable, Iterable

from engine.actions import StepFailed, default_actions
from engine.emission import Emission
from engine.errors import ContextTooLong, DeviceFailed, InvalidParameter, QueueFull, RequestRejected
from engine.function_table import FunctionTable, RetiredStep
from engine.metrics import EngineMetrics
from engine.open_request import OpenRequest, open_request
from engine.request import FinishReason, Request, TokenLogprobs
from engine.request_state import RequestState, Vocabulary
from engine.state import EngineState, InFlightStep
from engine.tiers.chain import BLOCK_TOKENS
from engine.tiers.store import KvStore
from engine.trace import OFF, Trace

logger = logging.getLogger(__name__)

MAX_WAITING = 1024
"""Answers that may wait; more are refused, so that a runaway client meets a limit before memory does."""

SOFTWARE_IN_FLIGHT = 2
"""Steps in flight on a software adapter. Its submit waits for the step before, so that more gain nothing, and a token
that is not quite there when it is asked for would come a whole step late."""

_IDLE_STEPS = 4


class Engine:
    """The serving core around one loaded model. It does not own the table: whoever made it closes it."""

    def __init__(
        self,
        table: FunctionTable,
        vocabulary: Vocabulary,
        clock: Callable[[], float] = time.perf_counter,
        metrics: EngineMetrics | None = None,
        trace: Trace = OFF,
        store: KvStore | None = None,
        emit: Callable[[list[Emission]], None] | None = None,
        software: bool = False,
    ) -> None:
        """`emit` takes what the requests have to say as soon as it is known, ahead of a submit that may block; without
        it all of it waits for take_outbox(). `software`: the table is on a software adapter."""
        self.state = EngineState(table, vocabulary, clock, metrics, trace, store)
        self._emit = emit
        self._most_in_flight = table.limits.max_in_flight
        if software:
            self._most_in_flight = min(self._most_in_flight, SOFTWARE_IN_FLIGHT)
        self._actions = default_actions()
        self._num_idle = 0
        self._deadlines: list[tuple[float, str]] = []

    @property
    def has_work(self) -> bool:
        """Whether step() has anything to do: open requests, steps to be retired, pages to be kept."""
        state = self.state
        return bool(state.ledger or state.in_flight or state.saver.num_queued or state.restorer.num_open)

    def add_request(self, request: Request, arrived: float | None = None) -> None:
        """Queue a request; `arrived` (the clock's seconds) is when its caller asked. Raises RequestRejected."""
        state = self.state
        if request.request_id in state.ledger:
            raise InvalidParameter(f"A request with the id {request.request_id} is open already. Use another id.")
        if len(state.waiting) >= MAX_WAITING:
            raise QueueFull(f"{MAX_WAITING} requests are waiting already. Try again when some have finished.")
        limit = self._tokens_to_draw(request)
        arrived = state.clock() if arrived is None else arrived
        state.enqueue(open_request(request, limit, arrived))
        if request.deadline_s is not None:
            heapq.heappush(self._deadlines, (arrived + request.deadline_s, request.request_id))

    def abort_request(self, request_id: str) -> None:
        """End all answers of an open request with "abort"; one that is not open is left alone."""
        opened = self.state.ledger.get(request_id)
        if opened is not None:
            self.state.end(opened, "abort")

    def end_all(self, reason: FinishReason, error: str | None = None) -> None:
        """End every open request. Their memory is free, or in the cache, when their last step has retired."""
        for opened in list(self.state.ledger.values()):
            self.state.end(opened, reason, error)

    def save_rest(self, timeout_s: float) -> None:
        """Bring what is still to be kept from the device, where that takes no longer. Raises as step() does."""
        state, deadline = self.state, time.monotonic() + timeout_s
        while state.saver.num_queued or any(step.saving for step in state.in_flight):
            if time.monotonic() > deadline:
                state.saver.release_held()
                break
            self.step()

    def clear_cache(self) -> None:
        """Forget every prompt and answer that is kept for later in memory, pinned ones too. The disk is left alone."""
        self.state.saver.forget(None)
        if self.state.store is not None:
            self.state.store.clear_host()
        self.state.cache.clear(self.state.table.last_submitted)

    def forget(self, chat: str) -> None:
        """Keep nothing more of what was computed for a chat until now. What the tiers have is the store's to forget."""
        self.state.saver.forget(chat)
        for opened in self.state.ledger.values():
            if opened.request.chat == chat:
                for answer in opened.answers:
                    answer.forgotten = True

    def detach(self) -> list[OpenRequest]:
        """Hand over the open requests, with what they were told, for an engine on the same model loaded again.

        Tokens in flight are given up; they are drawn again as they were. This engine must not be used any more.
        """
        self.state.restorer.close()
        carried = list(self.state.ledger.values())
        self.state.ledger.clear()
        for opened in carried:
            for answer in opened.answers:
                answer.forget_device()
        return carried

    def adopt(self, carried: Iterable[OpenRequest]) -> None:
        """Go on with requests that another engine has handed over; one that does not fit here ends with an error."""
        limits = self.state.limits
        for opened in carried:
            root = opened.answers[0]
            self.state.enqueue(opened)
            tokens = [*opened.request.prompt_ids, *(token for answer in opened.answers for token in answer.committed)]
            if (
                root.num_prompt + root.limit > min(limits.context_length, self.state.max_tokens_in_pool)
                or max(tokens) >= limits.vocab_size
            ):
                message = (
                    "The model was loaded again, and this request does not fit it any more. Send the message again."
                )
                self.state.end(opened, "error", message)
            elif opened.deadline is not None:
                heapq.heappush(self._deadlines, (opened.deadline, opened.request.request_id))

    def take_outbox(self) -> list[Emission]:
        """What the requests have to tell since the last call, in order."""
        outbox, self.state.outbox = self.state.outbox, []
        return outbox

    def step(self) -> None:
        """Retire, then submit one step; wait for the oldest one where nothing else can be done.

        A failure ends the requests that it belongs to. Raises DeviceFailed where there is no going on.
        """
        with self.state.trace.span("step"):
            self._step()
        self.state.note_gauges()

    def _step(self) -> None:
        state = self.state
        if self._deadlines:
            self._end_overdue()
        while state.in_flight and self._retire_oldest(wait=False):
            pass
        if len(state.in_flight) >= self._most_in_flight:
            self._retire_oldest(wait=True)
        if state.outbox and self._emit is not None:
            self._emit(self.take_outbox())
        try:
            acted = any(action.step(state) for action in self._actions)
        except StepFailed as failure:
            logger.error("A step could not be submitted: %s", failure, exc_info=failure.__cause__)
            state.fail(failure.participants, failure.sentence)
            return
        if acted:
            self._num_idle = 0
        elif state.in_flight:
            self._retire_oldest(wait=True)
        elif state.restorer.num_open:
            state.restorer.wait()
        elif state.saver.num_queued:
            state.saver.wait()
        elif state.ledger:
            self._num_idle += 1
            state.forget_blocked()
            if self._num_idle >= _IDLE_STEPS:
                # Unreachable unless the books are wrong: everything is free and still nobody can go on.
                self.end_all("error", "The engine lost track of this request. Send the message again.")

    def _end_overdue(self) -> None:
        now = self.state.clock()
        while self._deadlines and self._deadlines[0][0] <= now:
            due, request_id = heapq.heappop(self._deadlines)
            opened = self.state.ledger.get(request_id)
            if opened is not None and opened.deadline == due:
                seconds = f"{opened.request.deadline_s:g}"
                self.state.end(opened, "error", f"This request took longer than its limit of {seconds} s.")

    def _retire_oldest(self, *, wait: bool) -> bool:
        """Take one step back from the device, if it is done; False if it is not."""
        state = self.state
        try:
            with state.trace.span("retire"):
                retired = state.table.retire(wait=wait)
        except DeviceFailed:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a table raises ends this step's requests, no others
            self._give_up_oldest(error)
            return True
        if retired is None:
            return False
        step = state.retired(retired.step)
        if step is not None:
            self._commit(step, retired)
        return True

    def _give_up_oldest(self, error: Exception) -> None:
        """The oldest step's tokens cannot be read: end its requests, if the table at least let go of the step."""
        state = self.state
        if state.table.in_flight >= len(state.in_flight):
            raise DeviceFailed(f"The GPU did not finish a step ({type(error).__name__}: {error}).") from error
        logger.error("A step's tokens could not be read", exc_info=error)
        lost = state.in_flight[0]
        state.retired(lost.number)
        if lost.saving is not None:
            state.saver.lost(lost.saving)
        elif not lost.computes:
            # Pages that were to be loaded are in the tree already, and nobody knows what is in them now.
            state.cache.clear(state.table.last_submitted)
        state.fail(lost.participants, "The answer could not be read back from the GPU. Send the message again.")

    def _commit(self, step: InFlightStep, retired: RetiredStep) -> None:
        """Commit a retired step's tokens and post-process their requests. Tokens of finished requests are dropped."""
        state = self.state
        now = state.clock()
        seconds = now - max(step.started_at, state.last_retired_at)
        state.last_retired_at = now
        if step.saving is not None:
            state.saver.arrived(step.saving, retired.pages, seconds)
        if not step.computes:
            return
        state.saver.time_passed(seconds)
        end = max((end for _, end in step.chunks), default=0)
        state.pacer.note(seconds, step.num_prompt_rows, len(step.participants) - len(step.chunks), end)
        num_drawn = len(step.drawing)
        logprobs = retired.logprobs or (None,) * len(retired.tokens)
        if not num_drawn + len(step.scored) == len(retired.tokens) == len(logprobs):
            state.fail(step.participants, "The model returned a wrong number of tokens. Send the message again.")
            return
        for sequence, end in step.chunks:
            self._remember(sequence, end)
        for sequence, logprob in zip(step.scored, logprobs[num_drawn:], strict=True):
            if sequence.finish_reason is None and logprob is not None:
                state.ledger[sequence.request.request_id].prompt_logprobs.append(logprob)
        for sequence, token, logprob in zip(step.drawing, retired.tokens, logprobs, strict=False):
            if sequence.finish_reason is not None:
                continue
            try:
                self._post_process(sequence, token, logprob, now)
            except Exception:
                # Whatever is wrong with this token (say, an id that the vocabulary lacks) concerns its request alone.
                logger.exception("Request %s: token %d could not be processed", sequence.request.request_id, token)
                state.fail([sequence], "The model gave a token that could not be read. Send the message again.")

    def _remember(self, sequence: RequestState, end: int) -> None:
        """A chunk has retired: others may start from it now."""
        if sequence.slot < 0:
            return  # ended, or gave way with what had retired by then
        state = self.state
        sequence.num_retired = end
        state.memory.remember(sequence)
        state.saver.note(sequence, whole_blocks=end < sequence.num_target)
        if sequence.request.pin and not sequence.index and end >= sequence.num_prompt:
            state.pin(sequence)

    def _post_process(self, sequence: RequestState, token: int, logprob: TokenLogprobs | None, now: float) -> None:
        state = self.state
        if not 0 <= token < state.limits.vocab_size:
            raise ValueError(f"token {token} is outside the vocabulary")
        if sequence.request.logprobs is not None and logprob is None:
            raise ValueError("the token came without its logprob")
        state.ledger[sequence.request.request_id].note_token_time(now)
        sequence.commit_token(token, logprob)
        if not (sequence.num_prompt + len(sequence.committed)) % BLOCK_TOKENS:
            state.saver.note(sequence, whole_blocks=True)
        state.trace.instant("token", sequence.request.request_id)
        token_ids, text, reason = sequence.delta_request_return(state.vocabulary)
        if reason is not None:
            state.finish(sequence, reason, token_ids=token_ids, text=text)
        else:
            state.tell(sequence, token_ids, text)

    def _tokens_to_draw(self, request: Request) -> int:
        """How many tokens the request may get, at least 1. Raises RequestRejected where it can never be honoured."""
        state = self.state
        prompt, context, room = len(request.prompt_ids), state.limits.context_length, state.max_tokens_in_pool
        if prompt >= context:
            raise ContextTooLong(
                f"This prompt has {prompt} tokens; the context holds {context}. "
                "Shorten it, or load the model with a larger context."
            )
        if min(request.prompt_ids) < 0 or max(request.prompt_ids) >= state.limits.vocab_size:
            message = "The prompt has a token that this model does not know. Encode it with this model."
            raise InvalidParameter(message, param="prompt_ids")
        if any(token >= state.limits.vocab_size for token, _ in request.sampling.logit_bias):
            message = "logit_bias names a token that this model does not know. Encode it with this model."
            raise InvalidParameter(message, param="logit_bias")
        limit = context - prompt if request.max_tokens is None else min(request.max_tokens, context - prompt)
        if prompt + (1 if request.max_tokens is None else limit) > room:
            raise RequestRejected(
                f"This request needs memory for {prompt + limit} tokens; there is room for {room}. "
                "Shorten it, ask for fewer tokens, or load the model with a smaller context."
            )
        return min(limit, room - prompt)

"""EngineState: everything the engine knows between two steps, and the moves that keep it consistent.

Owns the queues, the ledger, the pools of pages and slots, the steps in flight and the outbox. Knows no action and no
thread. Only the engine's background thread touches it.

A request is in the ledger and in exactly one of three places until it finishes, which happens once:

    waiting --admit--> prefilling --all chunks submitted--> running
       (no slot)          (slot and all its pages)

The prefix cache will stand between a finished request and the pools; until then what it held is released.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from engine.function_table import PAGE_SIZE, FunctionTable
from engine.integrity import check_integrity
from engine.page_pool import Pool
from engine.request import FinishReason, Timings, Usage
from engine.request_state import RequestState, Vocabulary

logger = logging.getLogger(__name__)


class Emission(NamedTuple):
    """What one request has to tell its caller, before its bytes became text. The stream-back loop makes it a Delta."""

    request_id: str
    token_ids: tuple[int, ...] = ()
    text: bytes = b""
    finish_reason: FinishReason | None = None
    error: str | None = None
    usage: Usage | None = None
    timings: Timings | None = None


@dataclass(frozen=True, slots=True)
class InFlightStep:
    """A submitted step: who took part, and who gets each drawn token, in the order of its samples."""

    number: int
    participants: list[RequestState]
    drawing: list[RequestState]


class EngineState:
    """See the module's docstring. `clock` counts seconds and never goes back."""

    def __init__(
        self, table: FunctionTable, vocabulary: Vocabulary, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.table = table
        self.limits = table.limits
        self.vocabulary = vocabulary
        self.clock = clock
        self.ledger: dict[str, RequestState] = {}
        self.waiting: deque[RequestState] = deque()
        self.prefilling: list[RequestState] = []
        self.running: list[RequestState] = []
        self.pages = Pool(self.limits.num_pages)
        self.slots = Pool(self.limits.max_slots)
        self.in_flight: deque[InFlightStep] = deque()
        self.chunk_went_last = False
        """A prefill chunk was submitted last, so running requests have the next step."""
        self.outbox: list[Emission] = []

    @property
    def max_tokens_in_pool(self) -> int:
        """Tokens of the longest sequence that the pages hold, all to itself."""
        return self.limits.num_pages * PAGE_SIZE + 1

    def enqueue(self, sequence: RequestState) -> None:
        """Enter a new request; the caller has checked that it can be honoured."""
        self.ledger[sequence.request.request_id] = sequence
        self.waiting.append(sequence)

    def can_admit(self, sequence: RequestState) -> bool:
        """Whether everything that the request can ever need is free, so that it is certain to finish."""
        return bool(self.slots.num_free) and sequence.num_pages_needed <= self.pages.num_free

    def admit(self) -> RequestState:
        """Give the first waiting request its slot and pages, and queue its prompt."""
        sequence = self.waiting.popleft()
        [sequence.slot] = self.slots.take(1)
        sequence.pages = self.pages.take(sequence.num_pages_needed)
        self.prefilling.append(sequence)
        return sequence

    def start_running(self, sequence: RequestState) -> None:
        """Its whole prompt is submitted: from now on it decodes."""
        self.prefilling.remove(sequence)
        self.running.append(sequence)

    def finish(
        self,
        sequence: RequestState,
        reason: FinishReason,
        *,
        error: str | None = None,
        token_ids: tuple[int, ...] = (),
        text: bytes = b"",
    ) -> None:
        """End a request: take it out, release what it held when its last step has retired, and tell its caller."""
        if sequence.finish_reason is not None:
            return
        sequence.finish_reason = reason
        del self.ledger[sequence.request.request_id]
        if sequence.slot < 0:
            self.waiting.remove(sequence)
        else:
            (self.prefilling if sequence in self.prefilling else self.running).remove(sequence)
            last_submitted = self.table.last_submitted
            self.pages.release(sequence.pages, last_submitted)
            self.slots.release([sequence.slot], last_submitted)
            sequence.pages, sequence.slot = [], -1
        usage, timings = sequence.usage, sequence.timings
        text += sequence.flush_text()
        request_id = sequence.request.request_id
        self.outbox.append(Emission(request_id, token_ids, text, reason, error, usage, timings))
        logger.info(
            "Request %s: %d + %d tokens, first after %.3f s, %.1f tokens/s, %s",
            request_id,
            usage.prompt_tokens,
            usage.completion_tokens,
            timings.ttft_s,
            timings.decode_tokens_per_s,
            reason,
        )

    def fail(self, sequences: Iterable[RequestState], message: str) -> None:
        """End these requests, and no others, with an error."""
        for sequence in list(sequences):
            self.finish(sequence, "error", error=message)

    def retired(self, number: int) -> InFlightStep | None:
        """Account for a step that the device has finished; None for one whose submission was reported as failed."""
        self.pages.retire(number)
        self.slots.retire(number)
        if self.in_flight and self.in_flight[0].number == number:
            return self.in_flight.popleft()
        return None

    def check_integrity(self) -> None:
        """Recount pages, slots, sequences and steps from scratch; AssertionError where the books don't balance."""
        check_integrity(self)

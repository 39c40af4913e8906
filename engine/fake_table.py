"""A FunctionTable without a device: its next token is arithmetic, and it refuses what would corrupt a real one.

Owns a pretend KV cache in pages, the delay of steps in flight and planned faults. Each cell of the cache holds a
position and a hash of everything up to there, read back through the page table; so the tokens are known beforehand
(continuation()) and come out wrong if a page or a position is mixed up. Knows no request.

ValueError stands for "an invalid dispatch". Any one thread at a time may call it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from engine.function_table import FROM_DEVICE, PAGE_SIZE, RetiredStep, Row, Sample, TableLimits

_MODULUS = 2**31 - 1

NextToken = Callable[[int, int], int]
"""(hash of the sequence, its last token) -> the token that follows."""


def fold(state: int, token: int) -> int:
    """Hash of a sequence that is one token longer."""
    return (state * 31 + token + 1) % _MODULUS


def continuation(prompt: Sequence[int], count: int, next_token: NextToken) -> list[int]:
    """What a FakeTable with this next_token draws after the prompt."""
    tokens = list(prompt)
    state = 0
    for token in prompt:
        state = fold(state, token)
    for _ in range(count):
        tokens.append(next_token(state, tokens[-1]))
        state = fold(state, tokens[-1])
    return tokens[len(prompt) :]


def small_limits(
    *,
    vocab_size: int = 300,
    context_length: int = 256,
    max_rows: int = 32,
    max_samples: int = 8,
    max_slots: int = 8,
    num_pages: int = 64,
    max_in_flight: int = 4,
) -> TableLimits:
    """Limits small enough that tests meet every one of them."""
    return TableLimits(
        vocab_size=vocab_size,
        context_length=context_length,
        max_rows=max_rows,
        max_samples=max_samples,
        max_slots=max_slots,
        num_pages=num_pages,
        max_in_flight=max_in_flight,
    )


@dataclass(slots=True)
class Fault:
    """Raise `error` once, when `call` ("set_pages", "embed", ... "end_forward", "retire") meets step `step`."""

    call: str
    step: int
    error: Exception


@dataclass(slots=True)
class _Step:
    rows: Sequence[Row] = ()
    logit_rows: Sequence[int] = ()
    samples: Sequence[Sample] = ()
    tokens: tuple[int, ...] = ()
    done_at: float = 0.0
    calls: list[str] = field(default_factory=list)


class FakeTable:
    """See the module's docstring. A step is done when `delay` steps are in flight, or `step_s` after the one before.

    With shared_pages a page may be in the page tables of several slots, as it will be once prefixes are shared. Faults
    may be planned later too, by appending to `faults`.
    """

    def __init__(
        self,
        limits: TableLimits | None = None,
        *,
        next_token: NextToken = lambda state, last: state % 256,
        delay: int = 1,
        step_s: float = 0.0,
        faults: Iterable[Fault] = (),
        shared_pages: bool = False,
    ) -> None:
        self._limits = limits or small_limits()
        self._next_token = next_token
        self._delay = delay
        self._step_s = step_s
        self.faults = list(faults)
        self._shared_pages = shared_pages
        self._page_tables: list[list[int]] = [[] for _ in range(self._limits.max_slots)]
        self._owner = [-1] * self._limits.num_pages
        self._last_use = [0] * self._limits.num_pages
        self._slot_last_use = [0] * self._limits.max_slots
        self._cells: dict[int, tuple[int, int]] = {}  # page * PAGE_SIZE + offset -> position, hash up to there
        self._device_token: dict[int, int] = {}
        self._recording: _Step | None = None
        self._in_flight: deque[_Step] = deque()
        self._last_submitted = 0
        self.closed = False

    @property
    def limits(self) -> TableLimits:
        return self._limits

    @property
    def last_submitted(self) -> int:
        return self._last_submitted

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def last_retired(self) -> int:
        """Number of the newest step that was taken back."""
        return self._last_submitted - len(self._in_flight)

    def set_pages(self, slot: int, first: int, pages: Sequence[int]) -> None:
        self._meet("set_pages")
        _require(0 <= slot < self._limits.max_slots, f"slot {slot}")
        table = self._page_tables[slot]
        _require(first <= len(table), f"page table of slot {slot} would have a hole")
        rewrites = first < len(table) and self._slot_last_use[slot] > self.last_retired
        _require(not rewrites, f"the page table of slot {slot} is in use by a step in flight")
        for page in pages:
            _require(0 <= page < self._limits.num_pages, f"page {page}")
            free = self._shared_pages or self._last_use[page] <= self.last_retired
            _require(free, f"page {page} is in use by a step in flight")
        del table[first:]
        table.extend(pages)
        for page in pages:
            self._owner[page] = slot

    def begin_forward(self) -> None:
        self._meet("begin_forward")
        _require(not self.closed, "the table is closed")
        _require(len(self._in_flight) < self._limits.max_in_flight, "too many steps in flight")
        self._recording = _Step()

    def embed(self, rows: Sequence[Row]) -> None:
        step = self._record("embed", after=())
        _require(0 < len(rows) <= self._limits.max_rows, f"{len(rows)} rows")
        for row in rows:
            _require(0 <= row.slot < self._limits.max_slots, f"slot {row.slot}")
            _require(0 <= row.position < self._limits.context_length, f"position {row.position}")
            _require(FROM_DEVICE <= row.token < self._limits.vocab_size, f"token {row.token}")
            _require(row.token != FROM_DEVICE or row.slot in self._device_token, "the slot has drawn no token yet")
        step.rows = rows

    def prefill(self) -> None:
        self._record("layers", after=("embed",), fault="prefill")

    def decode(self) -> None:
        step = self._record("layers", after=("embed",), fault="decode")
        _require(len({row.slot for row in step.rows}) == len(step.rows), "two decode rows of one sequence")

    def logits(self, rows: Sequence[int]) -> None:
        step = self._record("logits", after=("embed", "layers"))
        _require(0 < len(rows) <= self._limits.max_samples, f"{len(rows)} rows of logits")
        _require(all(0 <= row < len(step.rows) for row in rows), "logits of a row that is not there")
        step.logit_rows = rows

    def sample(self, samples: Sequence[Sample]) -> None:
        step = self._record("sample", after=("embed", "layers", "logits"))
        _require([sample.row for sample in samples] == list(step.logit_rows), "samples and logits differ")
        for sample in samples:
            row = step.rows[sample.row]
            _require((sample.slot, sample.position) == (row.slot, row.position + 1), "a sample does not follow its row")
        step.samples = samples

    def end_forward(self) -> int:
        self._meet("end_forward")
        step = self._recording
        if step is None or step.calls not in (["embed", "layers"], ["embed", "layers", "logits", "sample"]):
            raise ValueError("the step is not complete")
        self._recording = None
        written = [self._write(row) for row in step.rows]
        step.tokens = tuple(self._next_token(*written[sample.row]) for sample in step.samples)
        for sample, token in zip(step.samples, step.tokens, strict=True):
            self._device_token[sample.slot] = token
        if self._step_s:
            before = self._in_flight[-1].done_at if self._in_flight else 0.0
            step.done_at = max(before, time.perf_counter()) + self._step_s
        self._last_submitted += 1
        self._in_flight.append(step)
        return self._last_submitted

    def retire(self, *, wait: bool) -> RetiredStep | None:
        if not self._in_flight:
            return None
        step = self._in_flight[0]
        if not wait and (len(self._in_flight) < self._delay or step.done_at > time.perf_counter()):
            return None
        if self._step_s:
            time.sleep(max(0.0, step.done_at - time.perf_counter()))
        self._in_flight.popleft()
        self._meet("retire", self.last_retired)
        return RetiredStep(self.last_retired, step.tokens)

    def close(self) -> None:
        self._in_flight.clear()
        self.closed = True

    def _record(self, call: str, *, after: tuple[str, ...], fault: str | None = None) -> _Step:
        self._meet(fault or call)
        step = self._recording
        if step is None or tuple(step.calls) != after:
            raise ValueError(f"{call} out of order")
        step.calls.append(call)
        return step

    def _write(self, row: Row) -> tuple[int, int]:
        """Append one row to its sequence's cache; returns the hash up to it, and its token."""
        before = 0
        if row.position:
            position, before = self._cells.get(self._cell(row.slot, row.position - 1), (-1, 0))
            _require(position == row.position - 1, f"position {row.position} follows nothing")
        token = self._device_token[row.slot] if row.token == FROM_DEVICE else row.token
        cell = self._cell(row.slot, row.position)
        self._cells[cell] = row.position, fold(before, token)
        self._last_use[cell // PAGE_SIZE] = self._slot_last_use[row.slot] = self._last_submitted + 1
        return self._cells[cell][1], token

    def _cell(self, slot: int, position: int) -> int:
        table = self._page_tables[slot]
        _require(position // PAGE_SIZE < len(table), f"slot {slot} has no page for position {position}")
        page = table[position // PAGE_SIZE]
        _require(self._shared_pages or self._owner[page] == slot, f"page {page} belongs to slot {self._owner[page]}")
        return page * PAGE_SIZE + position % PAGE_SIZE

    def _meet(self, call: str, step: int | None = None) -> None:
        if not self.faults:
            return
        number = self._last_submitted + 1 if step is None else step
        for fault in self.faults:
            if (fault.call, fault.step) == (call, number):
                self.faults.remove(fault)
                raise fault.error


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise ValueError(f"invalid: {what}")

"""A FunctionTable without a device: its next token is arithmetic, and it refuses what would corrupt a real one.

Owns a pretend KV cache in pages, the delay of steps in flight and planned faults. Each cell of the cache holds a
position, a token and a hash of everything up to there, read back through the page table; so the tokens are known
beforehand (continuation()) and come out wrong if a page or a position is mixed up. Knows no request.

Slots may share pages. Whoever writes to a page spoils it for every other slot that lists it: a slot with a step in
flight refuses at once, any other when it next runs. A slot that starts anew has drawn nothing and counted nothing.

ValueError stands for "an invalid dispatch". Any one thread at a time may call it.
"""

from __future__ import annotations

import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from engine.function_table import FROM_DEVICE, MAX_MOVED_PAGES, PAGE_SIZE, RetiredStep, Row, Sample, TableLimits
from engine.request import TokenLogprobs

_MODULUS = 2**31 - 1

_CELL = struct.Struct("<iii")
_NO_CELL = (-1, 0, 0)
PAGE_BYTES = PAGE_SIZE * _CELL.size

_COMPLETE = (["embed", "layers"], ["embed", "layers", "logits", "sample"], ["load_pages"], ["save_pages"])

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


def pretend_logprobs(state: int, token: int, num_top: int) -> TokenLogprobs:
    """What a FakeTable reports of a token that follows a sequence with this hash."""
    top = tuple(((state + rank) % 256, -0.5 * (rank + 1)) for rank in range(num_top))
    return TokenLogprobs(token=token, logprob=-(1 + (state + token) % 50) / 10, top=top)


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
        page_bytes=PAGE_BYTES,
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
    copies: Sequence[tuple[int, int]] = ()
    rows: Sequence[Row] = ()
    logit_rows: Sequence[int] = ()
    samples: Sequence[Sample] = ()
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs | None, ...] = ()
    moved: Sequence[int] = ()
    data: bytes = b""
    done_at: float = 0.0
    calls: list[str] = field(default_factory=list)


class FakeTable:
    """See the module's docstring. A step is done when `delay` steps are in flight, or `step_s` after the one before.

    Faults may be planned later too, by appending to `faults`.
    """

    def __init__(
        self,
        limits: TableLimits | None = None,
        *,
        next_token: NextToken = lambda state, last: state % 256,
        delay: int = 1,
        step_s: float = 0.0,
        faults: Iterable[Fault] = (),
    ) -> None:
        self._limits = limits or small_limits()
        self._next_token = next_token
        self._delay = delay
        self._step_s = step_s
        self.faults = list(faults)
        self._page_tables: list[list[int]] = [[] for _ in range(self._limits.max_slots)]
        self._holders: list[set[int]] = [set() for _ in range(self._limits.num_pages)]
        self._unverified: set[int] = set()  # slots whose page table began with pages that they did not write
        self._spoiled: dict[int, int] = {}  # slot -> a page of it that another slot has written to
        self._slot_last_use = [0] * self._limits.max_slots
        self._cells: dict[int, tuple[int, int, int]] = {}  # page * PAGE_SIZE + offset -> position, hash, token
        self._device_token: dict[int, int] = {}
        self.counted: dict[int, int] = {}
        """Slot -> tokens that its penalties know of."""
        self.num_copied = 0
        self.num_loaded = 0
        self.num_rows = 0
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
        for page in table[first:]:
            self._holders[page].discard(slot)
        del table[first:]
        table.extend(pages)
        for page in pages:
            self._holders[page].add(slot)
        if not first:
            self._spoiled.pop(slot, None)
            self._device_token.pop(slot, None)
            self.counted.pop(slot, None)
            self._unverified.add(slot)

    def set_counts(self, slot: int, prompt_ids: Sequence[int], generated_ids: Sequence[int]) -> None:
        self._meet("set_counts")
        _require(0 <= slot < self._limits.max_slots, f"slot {slot}")
        for token in (*prompt_ids, *generated_ids):
            _require(0 <= token < self._limits.vocab_size, f"token {token}")
        self.counted[slot] = len(prompt_ids) + len(generated_ids)

    def begin_forward(self) -> None:
        self._meet("begin_forward")
        _require(not self.closed, "the table is closed")
        _require(len(self._in_flight) < self._limits.max_in_flight, "too many steps in flight")
        self._recording = _Step()

    def copy_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        self._meet("copy_pages")
        step = self._recording
        if step is None or step.calls or step.copies:
            raise ValueError("copy_pages out of order")
        targets = [target for _, target in pairs]
        for source, target in pairs:
            _require(0 <= source < self._limits.num_pages, f"page {source}")
            _require(0 <= target < self._limits.num_pages, f"page {target}")
            _require(source not in targets, f"page {source} is copied and overwritten")
        _require(len(set(targets)) == len(targets), "two copies to one page")
        step.copies = pairs

    def load_pages(self, pages: Sequence[int], data: bytes) -> None:
        step = self._move("load_pages", pages)
        _require(len(data) == PAGE_BYTES * len(pages), f"{len(data)} bytes for {len(pages)} pages")
        step.data = data

    def save_pages(self, pages: Sequence[int]) -> None:
        self._move("save_pages", pages)

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
            if sample.params.counts_tokens and sample.forced is None:
                _require(self.counted.get(row.slot) == sample.position, f"slot {row.slot} has counted other tokens")
        step.samples = samples

    def end_forward(self) -> int:
        self._meet("end_forward")
        step = self._recording
        if step is None or step.calls not in _COMPLETE:
            raise ValueError("the step is not complete")
        self._recording = None
        if step.calls == ["load_pages"]:
            self._load(step)
        elif step.calls == ["save_pages"]:
            step.data = b"".join(map(self._page_as_bytes, step.moved))
        writers = {row.slot for row in step.rows}
        for source, target in step.copies:
            self._copy(source, target, writers)
        written = [self._write(row) for row in step.rows]
        self.num_rows += len(written)
        if step.samples:
            self._draw(step, written)
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
        saved = step.data if step.calls == ["save_pages"] else b""
        return RetiredStep(self.last_retired, step.tokens, step.logprobs, saved)

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

    def blank_tail(self, page: bytes, num_tokens: int) -> bytes:
        return page[: num_tokens * _CELL.size] + _CELL.pack(*_NO_CELL) * (PAGE_SIZE - num_tokens)

    def _move(self, call: str, pages: Sequence[int]) -> _Step:
        step = self._record(call, after=())
        _require(not step.copies, "a step that moves pages does nothing else")
        _require(0 < len(set(pages)) == len(pages) <= MAX_MOVED_PAGES, f"{len(pages)} pages to be moved")
        for page in pages:
            _require(0 <= page < self._limits.num_pages, f"page {page}")
        step.moved = pages
        return step

    def _load(self, step: _Step) -> None:
        cells = list(_CELL.iter_unpack(step.data))
        for index, page in enumerate(step.moved):
            self._spoil(page, -1)
            for offset, cell in enumerate(cells[index * PAGE_SIZE : (index + 1) * PAGE_SIZE]):
                self._cells[page * PAGE_SIZE + offset] = cell
        self.num_loaded += len(step.moved)

    def _page_as_bytes(self, page: int) -> bytes:
        cells = (self._cells.get(page * PAGE_SIZE + offset, _NO_CELL) for offset in range(PAGE_SIZE))
        return b"".join(_CELL.pack(*cell) for cell in cells)

    def _draw(self, step: _Step, written: list[tuple[int, int]]) -> None:
        tokens: list[int] = []
        logprobs: list[TokenLogprobs | None] = []
        for sample in step.samples:
            state, last = written[sample.row]
            token = self._next_token(state, last) if sample.forced is None else sample.forced
            tokens.append(token)
            top = sample.top_logprobs
            logprobs.append(None if top is None else pretend_logprobs(state, token, top))
            if sample.forced is None:
                self._device_token[sample.slot] = token
                if sample.slot in self.counted:
                    self.counted[sample.slot] += 1
        step.tokens = tuple(tokens)
        if any(logprobs):
            step.logprobs = tuple(logprobs)

    def _write(self, row: Row) -> tuple[int, int]:
        """Append one row to its sequence's cache; returns the hash up to it, and its token."""
        slot, position = row.slot, row.position
        if slot in self._spoiled:
            raise ValueError(f"invalid: page {self._spoiled[slot]} of slot {slot} was overwritten by another slot")
        if slot in self._unverified:
            self._verify(slot, position)
        before = 0
        if position:
            found, before, _ = self._cells.get(self._cell(slot, position - 1), _NO_CELL)
            _require(found == position - 1, f"position {position} follows nothing")
        token = self._device_token[slot] if row.token == FROM_DEVICE else row.token
        cell = self._cell(slot, position)
        self._spoil(cell // PAGE_SIZE, slot)
        state = fold(before, token)
        self._cells[cell] = position, state, token
        self._slot_last_use[slot] = self._last_submitted + 1
        return state, token

    def _copy(self, source: int, target: int, writers: set[int]) -> None:
        self._spoil(target, next(iter(self._holders[target] & writers), -1))
        self.num_copied += 1
        for offset in range(PAGE_SIZE):
            self._cells.pop(target * PAGE_SIZE + offset, None)
            cell = self._cells.get(source * PAGE_SIZE + offset)
            if cell is not None:
                self._cells[target * PAGE_SIZE + offset] = cell

    def _spoil(self, page: int, writer: int) -> None:
        """Writing to a page that other slots list too: see the module's docstring."""
        holders = self._holders[page]
        if len(holders) <= (writer in holders):
            return
        for slot in holders - {writer}:
            in_use = self._slot_last_use[slot] > self.last_retired
            _require(not in_use, f"page {page} is written to while slot {slot} reads it")
            self._spoiled[slot] = page

    def _verify(self, slot: int, count: int) -> None:
        """Check that the cells before position `count` are one unbroken sequence, whoever wrote them."""
        self._unverified.discard(slot)
        state = 0
        for position in range(count):
            cell = self._cells.get(self._cell(slot, position), _NO_CELL)
            state = fold(state, cell[2])
            _require(cell[:2] == (position, state), f"position {count} follows nothing")

    def _cell(self, slot: int, position: int) -> int:
        table = self._page_tables[slot]
        _require(position // PAGE_SIZE < len(table), f"slot {slot} has no page for position {position}")
        return table[position // PAGE_SIZE] * PAGE_SIZE + position % PAGE_SIZE

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

"""A FunctionTable without a device: its next token is arithmetic, and it refuses what would corrupt a real one.

Owns a pretend KV cache in pages, the delay of steps in flight and planned faults. Each cell of the cache holds a
position, a token and a hash of everything up to there, read back through the page table; so the tokens are known
beforehand (continuation()) and come out wrong if a page or a position is mixed up. Knows no request.

With a window a slot's page that none of its rows reaches any more, neither in flight nor to come, is nobody's: it is
neither read nor verified, and forgotten when another slot writes to it. Its tokens are the same as without a window,
for a cell's hash stands for everything before it.

Slots may share pages. Whoever writes to a page spoils it for every other slot that lists it: a slot with a step in
flight refuses at once, any other when it next runs. A slot that starts anew has drawn nothing and counted nothing.

ValueError stands for "an invalid dispatch". Any one thread at a time may call it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from engine.fake_parts import (
    CELL,
    NO_CELL,
    PAGE_BYTES,
    Fault,
    NextToken,
    continuation,
    fold,
    pretend_logprobs,
    small_limits,
)
from engine.function_table import FROM_DEVICE, MAX_MOVED_PAGES, PAGE_SIZE, RetiredStep, Row, Sample, TableLimits
from engine.request import TokenLogprobs

__all__ = ["PAGE_BYTES", "FakeTable", "Fault", "NextToken", "continuation", "fold", "pretend_logprobs", "small_limits"]

_COMPLETE = (["embed", "layers"], ["embed", "layers", "logits", "sample"], ["load_pages"], ["save_pages"])


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
        self._next_position: dict[int, int] = {}  # of slots that have run since they were given their pages
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
        _require(first <= len(table) or self._limits.window > 0, f"page table of slot {slot} would have a hole")
        rewrites = first < len(table) and self._slot_last_use[slot] > self.last_retired
        _require(not rewrites, f"the page table of slot {slot} is in use by a step in flight")
        for page in pages:
            _require(0 <= page < self._limits.num_pages, f"page {page}")
        for page in table[first:]:
            if page >= 0:
                self._holders[page].discard(slot)
        del table[first:]
        for page in pages:
            again = slot in self._holders[page] and not self._leave(slot, page)
            _require(not again, f"page {page} lies in two places of slot {slot}")
        table.extend([-1] * (first - len(table)))
        table.extend(pages)
        for page in pages:
            self._holders[page].add(slot)
        if not first:
            self._spoiled.pop(slot, None)
            self._device_token.pop(slot, None)
            self.counted.pop(slot, None)
            self._unverified.add(slot)
            self._next_position.pop(slot, None)

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
        if step.calls == ["load_pages"]:
            self._load(step)
        elif step.calls == ["save_pages"]:
            step.data = b"".join(map(self._page_as_bytes, step.moved))
        writers = {row.slot for row in step.rows}
        for source, target in step.copies:
            self._copy(source, target, writers)
        written = [self._write(row) for row in step.rows]
        self._recording = None
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
        return page[: num_tokens * CELL.size] + CELL.pack(*NO_CELL) * (PAGE_SIZE - num_tokens)

    def _move(self, call: str, pages: Sequence[int]) -> _Step:
        step = self._record(call, after=())
        _require(not step.copies, "a step that moves pages does nothing else")
        _require(0 < len(set(pages)) == len(pages) <= MAX_MOVED_PAGES, f"{len(pages)} pages to be moved")
        for page in pages:
            _require(0 <= page < self._limits.num_pages, f"page {page}")
        step.moved = pages
        return step

    def _load(self, step: _Step) -> None:
        cells = list(CELL.iter_unpack(step.data))
        for index, page in enumerate(step.moved):
            self._spoil(page, -1)
            for offset, cell in enumerate(cells[index * PAGE_SIZE : (index + 1) * PAGE_SIZE]):
                self._cells[page * PAGE_SIZE + offset] = cell
        self.num_loaded += len(step.moved)

    def _page_as_bytes(self, page: int) -> bytes:
        cells = (self._cells.get(page * PAGE_SIZE + offset, NO_CELL) for offset in range(PAGE_SIZE))
        return b"".join(CELL.pack(*cell) for cell in cells)

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
            found, before, _ = self._cells.get(self._cell(slot, position - 1), NO_CELL)
            _require(found == position - 1, f"position {position} follows nothing")
        token = self._device_token[slot] if row.token == FROM_DEVICE else row.token
        cell = self._cell(slot, position)
        self._spoil(cell // PAGE_SIZE, slot)
        state = fold(before, token)
        self._cells[cell] = position, state, token
        self._slot_last_use[slot] = self._last_submitted + 1
        self._next_position[slot] = position + 1
        return state, token

    def _copy(self, source: int, target: int, writers: set[int]) -> None:
        listing = self._holders[target] & writers
        if self._limits.window:
            listing = {slot for slot in listing if not self._leave(slot, target)}
        self._spoil(target, next(iter(listing), -1))
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
            if self._limits.window and self._leave(slot, page):
                continue
            in_use = self._slot_last_use[slot] > self.last_retired
            _require(not in_use, f"page {page} is written to while slot {slot} reads it")
            self._spoiled[slot] = page

    def _leave(self, slot: int, page: int) -> bool:
        """Forget a page of a slot if no row of it, in flight, recorded or to come, reaches it; whether none does."""
        table, following = self._page_tables[slot], self._next_position.get(slot, 0)
        index = max(index for index, listed in enumerate(table) if listed == page)
        steps = [*self._in_flight, self._recording] if self._recording is not None else self._in_flight
        rows = (row.position for step in steps for row in step.rows if row.slot == slot)
        if any(self._reaches(index, position) for position in (*rows, following)):
            return False
        table[index] = -1
        self._holders[page].discard(slot)
        return True

    def _reaches(self, index: int, position: int) -> bool:
        """Whether the row at `position` reads any of a slot's page with this index, or would later write it."""
        limits, first = self._limits, index * PAGE_SIZE
        return not limits.window or first < limits.sinks or first + PAGE_SIZE - 1 > position - limits.window

    def _verify(self, slot: int, count: int) -> None:
        """Check that the cells that the row at position `count` reaches are one unbroken sequence, whoever wrote them.

        Behind a gap the first cell is believed.
        """
        self._unverified.discard(slot)
        state: int | None = 0
        for position in range(count):
            if not self._reaches(position // PAGE_SIZE, count):
                state = None
                continue
            found, known, token = self._cells.get(self._cell(slot, position), NO_CELL)
            state = known if state is None else fold(state, token)
            _require((found, known) == (position, state), f"position {count} follows nothing")

    def _cell(self, slot: int, position: int) -> int:
        table = self._page_tables[slot]
        page = table[position // PAGE_SIZE] if position // PAGE_SIZE < len(table) else -1
        _require(page >= 0, f"slot {slot} has no page for position {position}")
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

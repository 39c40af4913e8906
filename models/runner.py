"""Replays a plan: rows and samples in, logits and sampled tokens out, up to four steps in flight.

Owns what a running model has on the device besides its weights and its draw stage: step table, logits, sampled tokens,
the rings of buffers that bring results back. A sampled token stays on the device for the sequence's next step. Knows
slots and page numbers, not sequences or requests; callers have checked all indices. The engine's background thread.

    fill the table -> submit(parts) ... retire (oldest first)
    submit_load(pages, data) | submit_save(pages) ... retire

A step that moves pages leaves the tables on the device and here as they are, so a step of tokens may follow the last
one of its kind across it with upload=False.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from models.draw_stage import DrawPart, DrawStage, StepBuffers
from models.kv_pages import KvPages, blank_tail
from models.page_copies import PageCopier
from models.page_moves import MovePart, PageMover
from models.plan import Plan
from shaders.device import Buffer, Gpu
from shaders.dispatch import Dispatch
from shaders.errors import DeviceLost, ShaderError
from shaders.logit_table import LogitTable
from shaders.ops.logits import RECORD_BYTES
from shaders.recorder import Command, Copy, MappedBuffer, Recorder, command
from shaders.run import check_grid
from shaders.step_table import StepTable
from shaders.timestamps import StepTimer, step_timer

Part = Literal["embed", "layers", "head"] | DrawPart
"""What a step may consist of, in this order; draw_stage.py says which of the last four go together."""

OnSpan = Callable[[str, int, int], None]

_CACHED_SHAPES = 64


class Retired(NamedTuple):
    """A finished step's tokens, and per sample its record of logprobs, u32 [samples, 21, 2] as logprobs.wgsl has it;
    None where none were asked for. pages: what submit_save() asked for, [pages, page bytes]."""

    tokens: tuple[int, ...]
    records: npt.NDArray[np.uint32] | None
    pages: bytes = b""


class _Arrival(NamedTuple):
    """Bytes on their way from the device."""

    mapped: MappedBuffer
    size: int


class _Flight(NamedTuple):
    """A submitted step: its number on the device, how many tokens it drew, and what brings its results.

    Those are tokens, then records of logprobs if any; or, of a step that saves, the pages alone.
    """

    number: int
    num_tokens: int
    arrivals: tuple[_Arrival, ...]
    saves: bool

    @property
    def answered(self) -> bool:
        return all(mapped.answered for mapped, _ in self.arrivals)


class Runner:
    """One model on one device. Attributes that benchmarks read: dispatches_last_step and waited_ns."""

    def __init__(
        self,
        gpu: Gpu,
        plan: Plan,
        draw: DrawStage,
        kv: KvPages,
        mover: PageMover,
        buffers: StepBuffers,
        table: StepTable,
        depth: int,
    ) -> None:
        self.gpu = gpu
        self.table = table
        self.dispatches_last_step = 0
        self._buffers = buffers
        self._kv = kv
        self._plan = plan
        self._draw = draw
        self._depth = depth
        self._page_copier = PageCopier(gpu, kv)
        self._mover = mover
        self._commands: dict[tuple[tuple[Part | MovePart, ...], int, int], list[Command]] = {}
        self._recorder = Recorder(gpu)
        self._ring = self._make_ring("tokens", 4 * table.max_samples)
        # Not one for each step in flight, as of the other rings: pages are large, and saves seldom follow each other.
        self._idle_saves: list[MappedBuffer] = []
        self._flying: deque[_Flight] = deque()
        self._submitted = 0
        self._timer: StepTimer | None = None
        self._on_span: OnSpan | None = None

    @property
    def logit_table(self) -> LogitTable:
        """What the samples of the next submit() ask for, to be filled where it has more parts than "sample"."""
        return self._draw.table

    @property
    def waited_ns(self) -> int:
        """Time spent waiting for the device so far, in submits and retires."""
        return self._recorder.waited_ns

    @property
    def in_flight(self) -> int:
        """Steps submitted and not retired."""
        return len(self._flying)

    def time_steps(self, on_span: OnSpan) -> None:
        """From now on call on_span(label, start_ns, end_ns) for each step's time on the device, where it can tell."""
        self._timer = step_timer(self.gpu, self._recorder, self._depth)
        self._on_span = on_span

    def set_pages(self, slot: int, first: int, pages: Sequence[int]) -> None:
        """Write entries of a slot's page table, ahead of the next submit."""
        self.gpu.require()
        entries = np.array(pages, np.uint32)
        offset = 4 * (slot * self._kv.table_stride + first)
        self._recorder.write(self._kv.page_table.pointer, offset, entries.ctypes.data, entries.nbytes)

    def set_counts(self, slot: int, prompt_ids: Sequence[int], generated_ids: Sequence[int]) -> None:
        """Say which tokens a slot's sequence has, ahead of the next submit; for penalties."""
        self.gpu.require()
        self._draw.set_counts(self._recorder, slot, prompt_ids, generated_ids)

    def submit(self, parts: Sequence[Part], *, upload: bool = True, pages: Sequence[tuple[int, int]] = ()) -> None:
        """Record and submit a step of these parts for what the tables hold; the caller has room in flight.

        `pages` (source, target) are copied first. A step that draws nothing retires with no tokens; one with "sample"
        leaves the device's table advanced by a token. Where the next step is just that, it passes upload=False (and
        need not fill the table: only its counts matter). Raises DeviceLost, asked before each raw call that would abort
        the process on a device that somebody destroyed.
        """
        self.gpu.require()
        table, recorder = self.table, self._recorder
        num_samples = table.num_samples
        commands = self._commands_of(tuple(parts), table.num_rows, num_samples)
        before = self._page_copier.copies(pages) if pages else ()
        after = [self._bring_tokens(num_samples)]
        if "logprobs" in parts:
            mapped = self._next_of(self._records_ring)
            after.append(_bring(mapped, self._draw.records.pointer, RECORD_BYTES * num_samples))
        if upload:
            recorder.write(self._buffers.step.pointer, 0, table.address, table.bytes_used)
        if "sample_processed" in parts or "logprobs" in parts:
            self._draw.write_table(recorder)
        drawn = num_samples if "sample" in parts or "sample_processed" in parts else 0
        self._submit(commands, f"{table.num_rows} rows", before=before, after=after, num_tokens=drawn)

    def submit_load(self, pages: Sequence[int], data: bytes) -> None:
        """Submit a step that fills whole pages, no two alike, with bytes that Retired.pages once held.

        The caller has room in flight. Raises DeviceLost, or OutOfDeviceMemory where nothing was moved before.
        """
        self.gpu.require()
        commands = self._commands_of(("load_pages",), len(pages), 0)
        self._mover.write(self._recorder, pages, data)
        # Nothing is to come back, but these few bytes tell when the step is done.
        self._submit(commands, f"{len(pages)} pages loaded", after=[self._bring_tokens(0)])

    def submit_save(self, pages: Sequence[int]) -> None:
        """Submit a step that brings whole pages to the host as all earlier steps leave them. Otherwise as a load."""
        self.gpu.require()
        commands = self._commands_of(("save_pages",), len(pages), 0)
        mapped = self._idle_saves.pop() if self._idle_saves else self._make_mapped("saved pages", self._mover.max_bytes)
        after = [_bring(mapped, self._mover.packed.pointer, self._mover.page_bytes * len(pages))]
        self._mover.write(self._recorder, pages)
        self._submit(commands, f"{len(pages)} pages saved", after=after, saves=True)

    def retire(self, *, wait: bool) -> Retired | None:
        """Results of the oldest step if it is done or, with `wait`, once it is. Raises DeviceLost."""
        if not self._flying:
            return None
        flight = self._flying[0]
        self.gpu.require()
        if not flight.answered:
            self._recorder.poll()
        if not flight.answered:
            if not wait:
                return None
            self._recorder.wait(flight.number)
        self.gpu.require()
        if not all(mapped.ready for mapped, _ in flight.arrivals):
            raise DeviceLost("The graphics device stopped answering.")
        self._flying.popleft()
        if self._timer is not None and self._on_span is not None:
            for span in self._timer.collect():
                self._on_span(span.label, span.start_ns, span.end_ns)
        first, *records = [mapped.take(size) for mapped, size in flight.arrivals]
        if flight.saves:
            self._idle_saves.append(flight.arrivals[0].mapped)
            return Retired((), None, first)
        return Retired(
            tuple(memoryview(first).cast("I")[: flight.num_tokens]),
            np.frombuffer(records[0], np.uint32).reshape(flight.num_tokens, -1, 2) if records else None,
        )

    def blank_tail(self, page: bytes, num_tokens: int) -> bytes:
        """See models.kv_pages.blank_tail()."""
        return blank_tail(self._kv, page, num_tokens)

    def read_logits(self, num_samples: int) -> npt.NDArray[np.float32]:
        """Logits of the newest step, f32 [num_samples, stride]; waits for everything in flight."""
        stride = self._buffers.logits_stride
        data = self.gpu.read(self._buffers.logits, 0, 4 * stride * num_samples)
        return data.view(np.float32).reshape(num_samples, stride)

    def _submit(
        self,
        commands: list[Command],
        label: str,
        *,
        before: Sequence[Copy] = (),
        after: Sequence[tuple[Copy, _Arrival]],
        num_tokens: int = 0,
        saves: bool = False,
    ) -> None:
        """Submit a step whose host writes are queued. `label` names it in a trace."""
        self.gpu.require()
        stamps = None if self._timer is None else self._timer.next
        index = self._recorder.submit(commands, before=before, after=[copy for copy, _ in after], stamps=stamps)
        if self._timer is not None and stamps is not None:
            self._timer.submitted(stamps, label)
        self.gpu.require()
        for _, (mapped, size) in after:
            mapped.request(size)
        self._flying.append(_Flight(index, num_tokens, tuple(arrival for _, arrival in after), saves))
        self._submitted += 1
        self.dispatches_last_step = len(commands)

    def _commands_of(self, parts: tuple[Part | MovePart, ...], rows: int, samples: int) -> list[Command]:
        key = (parts, rows, samples)
        commands = self._commands.get(key)
        if commands is None:
            if len(self._commands) >= _CACHED_SHAPES:
                self._commands.clear()
            dispatches = [dispatch for part in parts for dispatch in self._dispatches(part)]
            commands = self._commands[key] = _commands(dispatches, rows, samples)
        return commands

    def _dispatches(self, part: Part | MovePart) -> Sequence[Dispatch]:
        if part == "embed":
            return self._plan.embed
        if part == "layers":
            return self._plan.layers
        if part == "load_pages" or part == "save_pages":
            return self._mover.part(part)
        return self._plan.head if part == "head" else self._draw.part(part)

    def _make_ring(self, name: str, size: int) -> list[MappedBuffer]:
        buffers: list[Buffer] = []
        try:
            for i in range(self._depth):
                buffers.append(self.gpu.readback(f"{name} {i}", size))
        except ShaderError:
            self.gpu.release(buffers)  # or each request that asks would take some more
            raise
        return [MappedBuffer(self._recorder, buffer) for buffer in buffers]

    def _make_mapped(self, name: str, size: int) -> MappedBuffer:
        return MappedBuffer(self._recorder, self.gpu.readback(name, size))

    @cached_property
    def _records_ring(self) -> list[MappedBuffer]:
        return self._make_ring("logprobs", RECORD_BYTES * self.table.max_samples)

    def _next_of(self, ring: list[MappedBuffer]) -> MappedBuffer:
        """The one that belongs to the step about to be submitted."""
        return ring[self._submitted % len(ring)]

    def _bring_tokens(self, count: int) -> tuple[Copy, _Arrival]:
        """At least 8 bytes, and a multiple of 8, as a mapping asks."""
        size = max(8, -(-4 * count // 8) * 8)
        return _bring(self._next_of(self._ring), self._buffers.tokens.pointer, size)


def _bring(mapped: MappedBuffer, source: int, size: int) -> tuple[Copy, _Arrival]:
    """How the first `size` bytes of a buffer come to the host with a step."""
    return Copy(source, mapped.pointer, size), _Arrival(mapped, size)


def _commands(part: Sequence[Dispatch], rows: int, samples: int) -> list[Command]:
    """The dispatches as the recorder takes them; a pipeline is set only where it changes."""
    found: list[Command] = []
    last = 0
    for dispatch in part:
        bound, grid = dispatch.at(rows, samples)
        check_grid(bound.kernel.name, grid)
        found.append(command(bound, grid, same_pipeline=bound.pipeline_pointer == last))
        last = bound.pipeline_pointer
    return found

"""Replays a plan: rows and samples in, logits and sampled tokens out, up to four steps in flight.

Owns what a running model has on the device besides its weights: step table, logits, sampled tokens, the ring of
buffers that bring tokens back. A sampled token stays on the device for the sequence's next step. Knows slots and page
numbers, not sequences or requests; callers have checked all indices. The engine's background thread.

    fill the table -> submit(parts) ... retire (oldest first)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from models.kv_pages import KvPages
from models.plan import Plan
from shaders.device import Buffer, Gpu
from shaders.dispatch import Dispatch
from shaders.errors import DeviceLost
from shaders.kernel import Bound
from shaders.recorder import Command, Copy, MappedBuffer, Recorder, command
from shaders.run import check_grid
from shaders.step_table import StepTable

Part = Literal["embed", "layers", "head", "sample"]
"""What a step may consist of, in this order."""

_CACHED_SHAPES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerBuffers:
    """Buffers that a step reads or writes from outside the plan. tokens u32 [max_samples], logits f32 [.., stride]."""

    step: Buffer
    tokens: Buffer
    logits: Buffer
    logits_stride: int


class Runner:
    """One model on one device. Attributes that benchmarks read: dispatches_last_step and waited_ns."""

    def __init__(
        self,
        gpu: Gpu,
        plan: Plan,
        sampler: Bound,
        advance: Bound,
        kv: KvPages,
        buffers: RunnerBuffers,
        table: StepTable,
        depth: int,
    ) -> None:
        self.gpu = gpu
        self.table = table
        self.dispatches_last_step = 0
        self._buffers = buffers
        self._kv = kv
        self._plan = plan
        self._parts: dict[Part, Sequence[Dispatch]] = {
            "embed": plan.embed,
            "layers": plan.layers,
            "head": plan.head,
            "sample": (Dispatch(single=sampler, axis="x", count="samples"), Dispatch(single=advance, axis="none")),
        }
        self._commands: dict[tuple[tuple[Part, ...], int, int], list[Command]] = {}
        self._recorder = Recorder(gpu)
        self._ring = [
            MappedBuffer(self._recorder, gpu.readback(f"tokens {i}", 4 * table.max_samples)) for i in range(depth)
        ]
        self._flying: deque[tuple[int, MappedBuffer, int, int]] = deque()
        self._submitted = 0

    @property
    def waited_ns(self) -> int:
        """Time spent waiting for the device so far, in submits and retires."""
        return self._recorder.waited_ns

    @property
    def in_flight(self) -> int:
        """Steps submitted and not retired."""
        return len(self._flying)

    def set_pages(self, slot: int, first: int, pages: Sequence[int]) -> None:
        """Write entries of a slot's page table, ahead of the next submit."""
        entries = np.array(pages, np.uint32)
        offset = 4 * (slot * self._kv.table_stride + first)
        self._recorder.write(self._kv.page_table.pointer, offset, entries.ctypes.data, entries.nbytes)

    def submit(self, parts: Sequence[Part], *, upload: bool = True) -> None:
        """Record and submit a step of these parts for what the table holds; the caller has room in flight.

        A step without "sample" retires with no tokens; one with it leaves the device's table advanced by a token. Where
        the next step is just that, it passes upload=False (and need not fill the table: only its counts matter).
        """
        table, recorder = self.table, self._recorder
        mapped = self._ring[self._submitted % len(self._ring)]
        size = max(8, -(-4 * table.num_samples // 8) * 8)
        commands = self._commands_of(tuple(parts), table.num_rows, table.num_samples)
        if upload:
            recorder.write(self._buffers.step.pointer, 0, table.address, table.bytes_used)
        index = recorder.submit(commands, after=(Copy(self._buffers.tokens.pointer, mapped.pointer, size),))
        mapped.request(size)
        self._flying.append((index, mapped, size, table.num_samples if "sample" in parts else 0))
        self._submitted += 1
        self.dispatches_last_step = len(commands)

    def retire(self, *, wait: bool) -> tuple[int, ...] | None:
        """Tokens of the oldest step if it is done or, with `wait`, once it is. Raises DeviceLost."""
        if not self._flying:
            return None
        index, mapped, size, count = self._flying[0]
        if not mapped.answered:
            self._recorder.poll()
        if not mapped.answered:
            if not wait:
                return None
            self._recorder.wait(index)
        if not mapped.ready:
            raise DeviceLost("The graphics device stopped answering.")
        self._flying.popleft()
        return tuple(memoryview(mapped.take(size)).cast("I")[:count])

    def read_logits(self, num_samples: int) -> npt.NDArray[np.float32]:
        """Logits of the newest step, f32 [num_samples, stride]; waits for everything in flight."""
        stride = self._buffers.logits_stride
        data = self.gpu.read(self._buffers.logits, 0, 4 * stride * num_samples)
        return data.view(np.float32).reshape(num_samples, stride)

    def _commands_of(self, parts: tuple[Part, ...], rows: int, samples: int) -> list[Command]:
        key = (parts, rows, samples)
        commands = self._commands.get(key)
        if commands is None:
            if len(self._commands) >= _CACHED_SHAPES:
                self._commands.clear()
            dispatches = [dispatch for part in parts for dispatch in self._parts[part]]
            commands = self._commands[key] = _commands(dispatches, rows, samples)
        return commands


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

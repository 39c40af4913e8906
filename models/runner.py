"""Replays a plan: rows and samples in, logits and sampled tokens out, up to four steps in flight.

Owns what a running model has on the device besides its weights: step table, logits, sampled tokens, the ring of
buffers that bring tokens back. A sampled token stays on the device for the sequence's next step. Knows slots and page
numbers, not sequences or requests; callers have checked all indices. The engine's background thread.

    begin -> embed -> layers -> [head -> [sample]] -> submit ... retire (oldest first)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

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
        self, gpu: Gpu, plan: Plan, sampler: Bound, kv: KvPages, buffers: RunnerBuffers, table: StepTable, depth: int
    ) -> None:
        self.gpu = gpu
        self.table = table
        self.dispatches_last_step = 0
        self._buffers = buffers
        self._kv = kv
        self._plan = plan
        self._parts = {
            "embed": plan.embed,
            "layers": plan.layers,
            "head": plan.head,
            "sample": (Dispatch(single=sampler, axis="x", count="samples"),),
        }
        self._commands: dict[tuple[str, int, int], list[Command]] = {}
        self._recorder = Recorder(gpu)
        self._ring = [
            MappedBuffer(self._recorder, gpu.readback(f"tokens {i}", 4 * table.max_samples)) for i in range(depth)
        ]
        self._flying: deque[tuple[int, MappedBuffer, int, int]] = deque()
        self._submitted = 0
        self._drawn = 0
        self._dispatches = 0

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

    def begin(self) -> None:
        """Start recording a step."""
        self._recorder.begin()
        self._dispatches = 0
        self._drawn = 0

    def embed(self, num_rows: int) -> None:
        """Record the embedding of the table's rows; the table's begin() and rows may be filled in later."""
        self._run("embed", num_rows, 0)

    def layers(self, num_rows: int) -> None:
        """Record every layer."""
        self._run("layers", num_rows, 0)

    def head(self, num_rows: int, num_samples: int) -> None:
        """Record the logits of the table's samples."""
        self._run("head", num_rows, num_samples)

    def sample(self, num_samples: int) -> None:
        """Record the draw of a token per sample; a step without it retires with no tokens."""
        self._run("sample", 0, num_samples)
        self._drawn = num_samples

    def submit(self) -> None:
        """Upload the step table and submit; the caller has room in flight."""
        table, recorder = self.table, self._recorder
        mapped = self._ring[self._submitted % len(self._ring)]
        size = max(8, -(-4 * table.num_samples // 8) * 8)
        recorder.write(self._buffers.step.pointer, 0, table.address, table.bytes_used)
        index = recorder.submit((Copy(self._buffers.tokens.pointer, mapped.pointer, size),))
        mapped.request(size)
        self._flying.append((index, mapped, size, self._drawn))
        self._submitted += 1
        self.dispatches_last_step = self._dispatches

    def discard(self) -> None:
        """Forget a step that was begun and not submitted."""
        self._recorder.discard()

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
        data = mapped.take(size)
        return tuple(np.frombuffer(data, np.uint32, count).tolist())

    def read_logits(self, num_samples: int) -> npt.NDArray[np.float32]:
        """Logits of the newest step, f32 [num_samples, stride]; waits for everything in flight."""
        stride = self._buffers.logits_stride
        data = self.gpu.read(self._buffers.logits, 0, 4 * stride * num_samples)
        return data.view(np.float32).reshape(num_samples, stride)

    def _run(self, part: str, rows: int, samples: int) -> None:
        key = (part, rows, samples)
        commands = self._commands.get(key)
        if commands is None:
            if len(self._commands) >= _CACHED_SHAPES:
                self._commands.clear()
            commands = self._commands[key] = _commands(self._parts[part], rows, samples)
        self._recorder.run(commands)
        self._dispatches += len(commands)


def _commands(part: Sequence[Dispatch], rows: int, samples: int) -> list[Command]:
    """The dispatches as the recorder takes them; a pipeline is set only where it changes."""
    found: list[Command] = []
    last = 0
    for dispatch in part:
        bound, grid = dispatch.at(rows, samples)
        check_grid(bound.kernel.name, grid)
        pipeline = bound.pipeline_pointer
        found.append(command(0 if pipeline == last else pipeline, bound.group_pointer, grid))
        last = pipeline
    return found

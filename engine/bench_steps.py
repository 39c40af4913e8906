"""Steps of a benchmark: fills sequences and decodes them as the engine does, with a stopwatch around the host's part.

Decides nothing about what is worth measuring. Its prompts are random tokens from a fixed seed. The calling thread must
be the one that owns the table, with no step of others in flight.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from engine.function_table import FROM_DEVICE, PAGE_SIZE, FunctionTable, Row, Sample
from engine.request import GREEDY

_SEED = 20240229


class MeasuredTable(FunctionTable, Protocol):
    """A table that tells what a benchmark asks beyond serving. The attributes speak of the table's whole life."""

    @property
    def backend(self) -> str:
        """The graphics API underneath: "Vulkan", "Metal" or "D3D12"."""
        ...

    @property
    def waited_ns(self) -> int:
        """Time that end_forward() and retire() have waited for the device so far, off the processor."""
        ...

    @property
    def dispatches_last_step(self) -> int:
        """Dispatches of the newest submitted step."""
        ...

    @property
    def gpu_bytes(self) -> int:
        """The most device memory that was held at once, weights and pages included."""
        ...

    def measure_bandwidth_gb_s(self) -> float:
        """Gigabytes per second at which the device reads a large buffer; runs a few dispatches of its own."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRun:
    """One timed run of decode steps; the lists have one entry per step, with at least one."""

    seconds: float
    dispatches_per_step: int
    host_cpu_s: list[float]
    host_wall_s: list[float]


@dataclass(slots=True)
class _Stopwatch:
    """CPU time of this thread and wall time less the wait for the device, over sections of one step."""

    cpu_s: float = 0.0
    wall_s: float = 0.0

    @contextmanager
    def section(self, table: MeasuredTable) -> Iterator[None]:
        cpu, wall, waited = time.thread_time(), time.perf_counter(), table.waited_ns
        yield
        waited_s = (table.waited_ns - waited) / 1e9
        self.wall_s += max(0.0, time.perf_counter() - wall - waited_s)
        self.cpu_s += time.thread_time() - cpu


class BenchSequences:
    """A batch of equally long sequences on the device, one per slot, each with its own pages.

    A fill goes on from what is there, so that a rising row of contexts computes each position once.
    """

    def __init__(self, table: MeasuredTable) -> None:
        self.table = table
        self.batch = 0
        self.filled = 0
        self._random = random.Random(_SEED)

    def forget(self) -> None:
        """Let the next fill start from nothing."""
        self.batch = self.filled = 0

    def prefill(self, batch: int, length: int) -> float:
        """Bring `batch` sequences to `length` tokens and draw the next; the seconds until those have arrived.

        The caller has checked that they fit. Another batch, or no more than is filled already, starts from nothing.
        """
        if batch != self.batch or length <= self.filled:
            self._lay_out(batch)
        started = time.perf_counter()
        for slot in range(batch):
            self._prefill_slot(slot, self.filled, length)
        _drain(self.table)
        self.filled = length
        return time.perf_counter() - started

    def decode(self, batch: int, first: int, steps: int) -> DecodeRun:
        """Decode `steps` tokens of each sequence from position `first` on, over what stood there.

        `filled` stays: what is written beyond it is nobody's. Host times leave out the first steps, which have no
        finished step to take in.
        """
        table, stopwatches = self.table, []
        started = time.perf_counter()
        for position in range(first, first + steps):
            watch = _Stopwatch()
            if table.in_flight >= table.limits.max_in_flight:
                with watch.section(table):
                    table.retire(wait=True)
            with watch.section(table):
                self._submit_decode(batch, position)
            stopwatches.append(watch)
        _drain(table)
        steady = stopwatches[min(table.limits.max_in_flight, steps - 1) :]
        return DecodeRun(
            seconds=time.perf_counter() - started,
            dispatches_per_step=table.dispatches_last_step,
            host_cpu_s=[watch.cpu_s for watch in steady],
            host_wall_s=[watch.wall_s for watch in steady],
        )

    def _lay_out(self, batch: int) -> None:
        limits = self.table.limits
        pages = min(limits.num_pages // batch, -(-limits.context_length // PAGE_SIZE))
        for slot in range(batch):
            self.table.set_pages(slot, 0, range(slot * pages, (slot + 1) * pages))
        self.batch, self.filled = batch, 0

    def _prefill_slot(self, slot: int, first: int, length: int) -> None:
        table = self.table
        for start in range(first, length, table.limits.max_rows):
            end = min(start + table.limits.max_rows, length)
            if table.in_flight >= table.limits.max_in_flight:
                table.retire(wait=True)
            table.begin_forward()
            table.embed([Row(self._token(), position, slot) for position in range(start, end)])
            table.prefill()
            if end == length:
                table.logits([end - start - 1])
                table.sample([Sample(end - start - 1, slot, length, GREEDY)])
            table.end_forward()

    def _submit_decode(self, batch: int, position: int) -> None:
        table = self.table
        table.begin_forward()
        table.embed([Row(FROM_DEVICE, position, slot) for slot in range(batch)])
        table.decode()
        table.logits(range(batch))
        table.sample([Sample(slot, slot, position + 1, GREEDY) for slot in range(batch)])
        table.end_forward()

    def _token(self) -> int:
        return self._random.randrange(self.table.limits.vocab_size)


def _drain(table: FunctionTable) -> None:
    while table.in_flight:
        table.retire(wait=True)


@contextmanager
def spinning_thread() -> Iterator[None]:
    """A thread of pure Python that never rests, as a busy program around the engine would have."""
    done = threading.Event()

    def spin() -> None:
        while not done.is_set():
            pass

    thread = threading.Thread(target=spin, name="bench-spin", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()

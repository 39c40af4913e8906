"""How fast a loaded model is: prefill, decode, first token, the host's share, memory and bandwidth.

Decides what is measured and how often; engine/bench_steps.py drives the table. Knows no file format and prints nothing.
The calling thread must be the one that owns the table.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from engine.bench_steps import BenchSequences, DecodeRun, MeasuredTable, spinning_thread
from engine.function_table import PAGE_SIZE, TableLimits

DECODE_STEPS = 64
"""Steps that one decode measurement takes, and so the room that it needs beyond its context."""

_MIN_STEPS = 8
_REPEATS = 3
_WARM_UP_STEPS = 4
_RUN_S = 3.0  # a slower run is cut short or not repeated: its noise is small beside its length


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPlan:
    """What to measure. Batch 1 is decoded at every context, larger batches at the first one."""

    prefill: tuple[int, ...] = (128, 512)
    contexts: tuple[int, ...] = (128, 1024, 4096)
    batches: tuple[int, ...] = (8,)

    def decode_points(self) -> list[tuple[int, int]]:
        """(batch, context) of each decode measurement, in order, none twice."""
        points = [(1, context) for context in self.contexts] + [(batch, self.contexts[0]) for batch in self.batches]
        return list(dict.fromkeys(points))

    def context_needed(self) -> int:
        """Positions that the largest measurement fills, over all its sequences."""
        decode = max(batch * _padded(context + DECODE_STEPS) for batch, context in self.decode_points())
        return max(decode, *map(_padded, self.prefill))


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillResult:
    tokens: int
    tokens_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeResult:
    """tokens_per_s counts the whole batch. Host time is thread CPU time, contended host time is wall time."""

    batch: int
    context: int
    tokens_per_s: float
    dispatches_per_token: float
    host_ms_per_token: float
    host_ms_per_token_contended: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bandwidth:
    """Gigabytes (10^9) per second: weights read by decode, and what the device can read at all."""

    achieved_gb_s: float
    ceiling_gb_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchReport:
    """Every number of one run. ttft_ms belongs to the first prompt length of the plan."""

    prefill: tuple[PrefillResult, ...]
    decode: tuple[DecodeResult, ...]
    ttft_ms: float
    peak_gpu_bytes: int
    bandwidth: Bandwidth


def measure(table: MeasuredTable, weight_bytes: int, plan: BenchPlan, note: Callable[[str], None]) -> BenchReport:
    """Measure what of the plan fits the table; `note` is told of each measurement that doesn't.

    Raises DeviceFailed. Numbers that could not be taken are 0.
    """
    sequences = BenchSequences(table)
    _warm_up(sequences)
    prefill_s = {n: _prefill_s(sequences, n) for n in plan.prefill if _fits(table.limits, 1, n, note)}
    decode = tuple(
        _decode(sequences, batch, context)
        for batch, context in plan.decode_points()
        if _fits(table.limits, batch, context + DECODE_STEPS, note)
    )
    peak_gpu_bytes = table.gpu_bytes  # before the buffer that measures the bandwidth
    ceiling_gb_s = table.measure_bandwidth_gb_s()
    single = next((result for result in decode if result.batch == 1), None)
    return BenchReport(
        prefill=tuple(PrefillResult(tokens=n, tokens_per_s=n / seconds) for n, seconds in prefill_s.items()),
        decode=decode,
        ttft_ms=next(iter(prefill_s.values()), 0.0) * 1e3,
        peak_gpu_bytes=peak_gpu_bytes,
        bandwidth=Bandwidth(
            achieved_gb_s=weight_bytes * single.tokens_per_s / 1e9 if single else 0.0, ceiling_gb_s=ceiling_gb_s
        ),
    )


def _fits(limits: TableLimits, batch: int, length: int, note: Callable[[str], None]) -> bool:
    rows = min(limits.max_rows, limits.max_samples, limits.max_slots)
    if batch > rows:
        note(f"Skipped batch {batch}: this model is loaded for at most {rows} sequences.")
        return False
    room = min(limits.context_length, limits.num_pages // batch * PAGE_SIZE)
    if length > room:
        note(f"Skipped {length} tokens at batch {batch}: the loaded context has room for {room}.")
        return False
    return True


def _warm_up(sequences: BenchSequences) -> None:
    """The first steps build pipelines and wake the device; nobody's numbers should carry that."""
    limits = sequences.table.limits
    sequences.prefill(1, min(PAGE_SIZE, limits.context_length - _WARM_UP_STEPS))
    sequences.decode(1, sequences.filled, _WARM_UP_STEPS)


def _prefill_s(sequences: BenchSequences, length: int) -> float:
    """Seconds from the first prompt token to the first answer token, the median of some runs."""

    def once() -> float:
        sequences.forget()
        return sequences.prefill(1, length)

    seconds = [once()]
    while len(seconds) < _REPEATS and seconds[0] < _RUN_S:
        seconds.append(once())
    return median(seconds)


def _decode(sequences: BenchSequences, batch: int, context: int) -> DecodeResult:
    sequences.prefill(batch, context)
    trial = sequences.decode(batch, context, _MIN_STEPS)
    affordable = int(_RUN_S / max(trial.seconds / _MIN_STEPS, 1e-9))
    steps = max(_MIN_STEPS, min(DECODE_STEPS, affordable))
    runs = [trial] if affordable < _MIN_STEPS else [sequences.decode(batch, context, steps) for _ in range(_REPEATS)]
    with spinning_thread():
        contended = sequences.decode(batch, context, steps)
    return DecodeResult(
        batch=batch,
        context=context,
        tokens_per_s=batch * steps / median(run.seconds for run in runs),
        dispatches_per_token=runs[0].dispatches_per_step / batch,
        host_ms_per_token=_host_cpu_s(runs) * 1e3 / batch,
        host_ms_per_token_contended=median(contended.host_wall_s) * 1e3 / batch,
    )


def _host_cpu_s(runs: Sequence[DecodeRun]) -> float:
    steps = [seconds for run in runs for seconds in run.host_cpu_s]
    # Windows counts a thread's CPU time in ticks of 16 ms: a single step shows 0 or a whole tick, only the mean tells.
    return sum(steps) / len(steps) if sys.platform == "win32" else median(steps)


def _padded(length: int) -> int:
    return -(-length // PAGE_SIZE) * PAGE_SIZE

"""How much sooner a kept conversation answers than one that is computed, and what keeping costs those who are answered.

Drives an engine of its own around a loaded table; decides what is measured, prints nothing. The calling thread must be
the one that owns the table.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from engine.emission import Emission
from engine.engine import Engine
from engine.function_table import FunctionTable
from engine.request import Request
from engine.request_state import Vocabulary
from engine.tiers.disk_limits import DiskLimits
from engine.tiers.fingerprint import FINGERPRINT_BYTES
from engine.tiers.folder import BlockFolder
from engine.tiers.host import HostTier
from engine.tiers.store import KvStore

_ROUNDS = 3
_SEGMENT_TOKENS = 40
_SEGMENTS = 20
"""Stretches of one answer, by turns with blocks being written and without."""

_SETTLING_TOKENS = 5
_DRAIN_S = 120.0
_ROOMY = 1 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptResult:
    """Seconds to the first token of a prompt: computed, from the disk, from memory; medians of some rounds.

    bytes: what was read from the disk for it. quiet and writing: milliseconds between the tokens of an answer at that
    depth, median and 99th percentile, without and with blocks being read from the device and written; blocks_written
    meanwhile.
    """

    tokens: int
    computed_s: float
    from_disk_s: float
    from_memory_s: float
    bytes: int
    save_s: float
    quiet_median_ms: float
    quiet_p99_ms: float
    writing_median_ms: float
    writing_p99_ms: float
    blocks_written: int


def measure_kept(
    table: FunctionTable, vocabulary: Vocabulary, num_tokens: int, folder: Path, *, software: bool = False
) -> KeptResult:
    """Measure with a prompt of so many tokens, kept under `folder`, which should be empty. Raises DeviceFailed."""
    prompt = tuple(1 + 7919 * i % (table.limits.vocab_size - 1) for i in range(num_tokens))
    with _store(table, folder) as store:
        told: list[tuple[float, int]] = []
        engine = Engine(table, vocabulary, store=store, emit=partial(_note_tokens, told), software=software)
        _first_token_s(engine, told, prompt[: min(64, num_tokens)], use_cache=False)  # warm
        rounds = [_first_token_s(engine, told, prompt, use_cache=False)]
        while len(rounds) < _ROUNDS and sum(rounds) < 20.0:
            rounds.append(_first_token_s(engine, told, prompt, use_cache=False))
        _first_token_s(engine, told, prompt)
        began = time.perf_counter()
        engine.save_rest(_DRAIN_S)
        store.flush(_DRAIN_S)
        save_s = time.perf_counter() - began
        restored: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(_ROUNDS):
            for from_disk in restored:
                engine.state.cache.clear(table.last_submitted)
                if from_disk:
                    store.clear_host()
                restored[from_disk].append(_first_token_s(engine, told, prompt))
        num_bytes = sum(path.stat().st_size for path in folder.rglob("*.safetensors"))
        gaps, num_written = _gaps(engine, store, prompt, told)
    return KeptResult(
        tokens=num_tokens,
        computed_s=median(rounds),
        from_disk_s=median(restored[True]),
        from_memory_s=median(restored[False]),
        bytes=num_bytes,
        save_s=save_s,
        quiet_median_ms=median(gaps[False]) * 1e3,
        quiet_p99_ms=_p99(gaps[False]) * 1e3,
        writing_median_ms=median(gaps[True]) * 1e3,
        writing_p99_ms=_p99(gaps[True]) * 1e3,
        blocks_written=num_written,
    )


def context_needed(num_tokens: int) -> int:
    """Positions that the measurement fills."""
    return num_tokens + (_SEGMENTS + 1) * _SEGMENT_TOKENS


@contextmanager
def _store(table: FunctionTable, folder: Path) -> Iterator[KvStore]:
    fingerprint, page_bytes = os.urandom(FINGERPRINT_BYTES), table.limits.page_bytes
    limits = DiskLimits(budget_bytes=_ROOMY, reserve_bytes=0, daily_write_bytes=_ROOMY)
    blocks = BlockFolder(folder, fingerprint, page_bytes, limits)
    store = KvStore(fingerprint, page_bytes, HostTier(1 << 30), blocks, None)
    try:
        yield store
    finally:
        store.close(_DRAIN_S)


def _first_token_s(
    engine: Engine, told: list[tuple[float, int]], prompt: tuple[int, ...], *, use_cache: bool = True
) -> float:
    began = time.perf_counter()
    request = Request(request_id="bench", prompt_ids=prompt, max_tokens=1, ignore_eos=True, use_cache=use_cache)
    engine.add_request(request)
    del told[:]
    while not told:
        engine.step()
        _note_tokens(told, engine.take_outbox())
    seconds = told[0][0] - began
    while engine.state.ledger or engine.state.in_flight:
        engine.step()
    return seconds


def _note_tokens(told: list[tuple[float, int]], emissions: list[Emission]) -> None:
    now = time.perf_counter()
    told += [(now, len(emission.token_ids)) for emission in emissions if emission.token_ids]


def _gaps(
    engine: Engine, store: KvStore, prompt: tuple[int, ...], told: list[tuple[float, int]]
) -> tuple[dict[bool, list[float]], int]:
    """Seconds between the tokens of one answer, with (True) and without (False) its own blocks being written.

    There is always something to write: once all is written, the store begins anew.
    """
    limit = (_SEGMENTS + 1) * _SEGMENT_TOKENS - 1
    engine.add_request(Request(request_id="bench", prompt_ids=prompt, max_tokens=limit, ignore_eos=True))
    del told[:]
    state, before = engine.state, store.num_put
    while state.ledger:
        if (len(told) // _SEGMENT_TOKENS) % 2 == 0:
            state.saver.release_held()
        elif state.running and not state.saver.num_queued:
            store.begin_anew()
            state.saver.note(state.running[0])
        engine.step()
        _note_tokens(told, engine.take_outbox())
    num_put = store.num_put - before
    while state.in_flight:
        engine.step()
    gaps: dict[bool, list[float]] = {True: [], False: []}
    for index in range(_SEGMENT_TOKENS, len(told)):
        # The first tokens of a segment still feel the one before it.
        if index % _SEGMENT_TOKENS > _SETTLING_TOKENS:
            gaps[(index // _SEGMENT_TOKENS) % 2 == 1].append(told[index][0] - told[index - 1][0])
    return gaps, num_put


def _p99(values: list[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(0.99 * len(values)))]

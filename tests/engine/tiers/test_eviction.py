"""What of the folder goes when there is too much, and how much is ever written."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import engine.tiers.eviction
from engine.tiers.chain import root_key
from engine.tiers.disk_limits import (
    DAILY_WRITE_BYTES,
    MAX_BUDGET_BYTES,
    MAX_RESERVE_BYTES,
    DiskLimits,
    MemoryLedger,
    default_limits,
)
from engine.tiers.eviction import LISTING_LASTS_S
from engine.tiers.folder import BlockFolder
from engine.tiers.listing import model_folder
from tests.engine.tiers.blocks import (
    CHAIN,
    FINGERPRINT,
    GIB,
    OTHER,
    PAGE_BYTES,
    ROOT,
    SIZE,
    QuickFiles,
    block_files,
    bytes_used,
    kept,
    make_block,
    make_chain,
    make_folder,
    make_limits,
    pairs,
    path_of,
    write_all,
)

# -- what goes first


def test_the_longest_unused_goes_first_whatever_the_model(tmp_path: Path) -> None:
    files = QuickFiles()
    folder = make_folder(tmp_path, files, budget=6 * SIZE)
    other = make_folder(tmp_path, files, fingerprint=OTHER, budget=6 * SIZE)
    apart = [make_block(ROOT, tuple(range(seed, seed + 64))) for seed in range(5 * 10**6, 5 * 10**6 + 10)]
    foreign = [make_block(root_key(OTHER), block.tokens) for block in apart]
    for index in range(3):
        write_all(folder, [apart[index]])
        files.pass_time(10)
        write_all(other, [foreign[index]])
        files.pass_time(10)
    folder.scan()
    other.scan()
    folder.touch(pairs(apart[:1]))
    files.pass_time(10)
    write_all(other, [foreign[3]])  # foreign[0] is the longest unused by now
    assert kept(tmp_path, apart[:3]) == [True, True, True]
    assert kept(tmp_path, foreign[:4], OTHER) == [False, True, True, True]
    folder.scan()
    write_all(folder, [apart[3]])
    assert kept(tmp_path, apart[:4]) == [True, False, True, True] and not folder.contains(apart[1].key)
    files.pass_time(10)
    write_all(folder, apart[4:10])
    assert kept(tmp_path, apart) == [False] * 4 + [True] * 6
    assert not model_folder(tmp_path, OTHER).exists(), "an empty folder stays"
    assert folder.used_bytes == bytes_used(tmp_path) <= 6 * SIZE


@pytest.mark.parametrize("step_ns", [1, 100, 10**9, 2 * 10**9])
@pytest.mark.parametrize("relist", [False, True])
def test_the_end_of_a_conversation_goes_before_its_beginning(tmp_path: Path, step_ns: int, relist: bool) -> None:
    files = QuickFiles(step_ns=step_ns)
    folder = make_folder(tmp_path, files, budget=6 * SIZE)
    write_all(folder, CHAIN)
    files.pass_time(3)
    newcomers = make_chain(4, seed=1)
    for count, block in enumerate(newcomers, 1):
        if relist:
            folder.scan()
        write_all(folder, [block])
        assert kept(tmp_path, CHAIN) == [True] * (6 - count) + [False] * count
    assert all(kept(tmp_path, newcomers))


@pytest.mark.parametrize("step_ns", [1, 2 * 10**9])
def test_touching_dates_a_beginning_after_its_end(tmp_path: Path, step_ns: int) -> None:
    files = QuickFiles(step_ns=step_ns)
    folder = make_folder(tmp_path, files)
    write_all(folder, CHAIN)
    files.pass_time(1000)
    folder.touch(pairs(CHAIN)[3:])  # what precedes them was in memory
    times = [path_of(tmp_path, block).stat().st_mtime_ns for block in CHAIN]
    assert times == sorted(times, reverse=True)
    assert times[0] == files.now_ns() // step_ns * step_ns
    assert step_ns > 1 or len(set(times)) == len(times)


def test_writing_the_end_of_an_old_conversation_keeps_its_beginning(tmp_path: Path) -> None:
    files = QuickFiles()
    folder = make_folder(tmp_path, files, budget=6 * SIZE)
    write_all(folder, CHAIN[:3])
    files.pass_time(100)
    between = make_chain(3, seed=1)
    write_all(folder, between)
    files.pass_time(7200)
    folder = make_folder(tmp_path, files, budget=6 * SIZE)
    write_all(folder, CHAIN[3:])
    assert all(kept(tmp_path, CHAIN)) and not any(kept(tmp_path, between))
    times = [path_of(tmp_path, block).stat().st_mtime_ns for block in CHAIN]
    assert times == sorted(times, reverse=True)


def test_what_another_process_used_meanwhile_stays(tmp_path: Path) -> None:
    files = QuickFiles()
    folder, other = make_folder(tmp_path, files, budget=4 * SIZE), make_folder(tmp_path, files)
    apart = [make_block(ROOT, tuple(range(seed, seed + 64))) for seed in range(5 * 10**6, 5 * 10**6 + 6)]
    for block in apart[:4]:
        write_all(folder, [block])
        files.pass_time(1)
    other.scan()
    other.touch(pairs(apart[:1]))
    write_all(folder, [apart[4]])
    assert kept(tmp_path, apart[:5]) == [True, False, True, True, True]


# -- limits


def test_the_budget_holds_after_each_write(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, budget=5 * SIZE + 7)
    for seed in range(12):
        for block in make_chain(3, seed=seed):
            assert folder.write(block)
            assert bytes_used(tmp_path) == folder.used_bytes <= 5 * SIZE + 7


def test_a_smaller_budget_holds_from_the_start(tmp_path: Path) -> None:
    write_all(make_folder(tmp_path), CHAIN)
    folder = make_folder(tmp_path, budget=2 * SIZE)
    assert kept(tmp_path, CHAIN) == [True, True, False, False, False, False]
    assert len(folder) == 2


def test_what_others_write_counts_when_the_listing_is_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, other = make_folder(tmp_path, budget=6 * SIZE), make_folder(tmp_path, budget=6 * SIZE)
    write_all(folder, CHAIN[:1])
    write_all(other, make_chain(5, seed=1))
    now = engine.tiers.eviction.time.monotonic()
    monkeypatch.setattr(engine.tiers.eviction.time, "monotonic", lambda: now + LISTING_LASTS_S + 1)
    write_all(folder, CHAIN[1:3])
    assert bytes_used(tmp_path) == folder.used_bytes <= 6 * SIZE
    assert folder.contains(make_chain(1, seed=1)[0].key), "the index did not learn what was written meanwhile"


@pytest.mark.parametrize("budget", [0, SIZE // 4, SIZE - 1])
def test_a_block_larger_than_the_budget_is_not_written(tmp_path: Path, budget: int) -> None:
    folder = make_folder(tmp_path, budget=budget)
    assert not folder.write(CHAIN[0])
    assert block_files(tmp_path) == [] and folder.trouble is None


def test_the_reserve_stays_free(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    files = QuickFiles()
    folder = make_folder(tmp_path, files, reserve=10**6)
    files.free = 10**6 + SIZE
    write_all(folder, CHAIN[:1])
    files.free = 10**6 + len(CHAIN[0].data) - 1
    assert not folder.write(CHAIN[1]) and not folder.write(CHAIN[2])
    assert "full" in (folder.trouble or "")
    files.free = 10**9
    write_all(folder, CHAIN[1:3])
    assert folder.trouble is None
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_a_day_has_its_share(tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    class Ledger(MemoryLedger):
        def next_day(self) -> None:
            self._day -= 1

    ledger = Ledger()
    folder = BlockFolder(
        tmp_path, FINGERPRINT, PAGE_BYTES, make_limits(daily=2 * SIZE + 10), ledger=ledger, files=QuickFiles()
    )
    write_all(folder, CHAIN[:2])
    assert ledger.written_today() == 2 * SIZE
    assert not folder.write(CHAIN[2]) and not folder.write(CHAIN[3])
    assert folder.trouble is not None and len(caplog.records) == 1
    ledger.next_day()
    write_all(folder, CHAIN[2:4])
    assert folder.trouble is None and ledger.written_today() == 2 * SIZE


@pytest.mark.parametrize(
    ("total", "free", "budget", "reserve"),
    [
        (1000 * GIB, 500 * GIB, MAX_BUDGET_BYTES, MAX_RESERVE_BYTES),
        (100 * GIB, 20 * GIB, 18 * GIB // 4, 2 * GIB),
        (20 * GIB, 5 * GIB, GIB, GIB),
        (100 * GIB, GIB, 0, 2 * GIB),
    ],
)
def test_the_default_limits(tmp_path: Path, total: int, free: int, budget: int, reserve: int) -> None:
    class Disk(QuickFiles):
        def disk_space(self, path: Path) -> tuple[int, int]:
            assert path == tmp_path
            return total, free

    limits = default_limits(tmp_path / "not" / "there" / "yet", Disk())
    assert limits == DiskLimits(budget_bytes=budget, reserve_bytes=reserve, daily_write_bytes=DAILY_WRITE_BYTES)


def test_the_default_budget_counts_what_is_ours(tmp_path: Path) -> None:
    class Disk(QuickFiles):
        def disk_space(self, path: Path) -> tuple[int, int]:
            return 100 * GIB, 2 * GIB + 4 * SIZE

    write_all(make_folder(tmp_path), CHAIN)
    assert default_limits(tmp_path, Disk()).budget_bytes == 10 * SIZE // 4


def test_the_default_limits_of_a_disk_that_says_nothing(tmp_path: Path) -> None:
    class Disk(QuickFiles):
        def disk_space(self, path: Path) -> tuple[int, int]:
            raise OSError("no such call")

    assert 0 < default_limits(tmp_path, Disk()).budget_bytes <= GIB
    assert default_limits(tmp_path).budget_bytes >= 0

"""Drives that are slow, hang, trickle or take nothing, and conversations all the same: by the symptom a person sees.

How long something takes is mostly counted in steps: one that waits for a drive waits for a moment.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine import restoring, saving
from engine.fake_table import PAGE_BYTES, continuation, small_limits
from engine.pacing import Pacer
from engine.tiers import store as store_module
from engine.tiers.disk_limits import DiskLimits
from engine.tiers.fetch import MOST_AHEAD
from engine.tiers.settings import TierSettings, open_store
from engine.tiers.store import KvStore
from tests.engine.conftest import WAIT_S, Driver

ROOMY = DiskLimits(budget_bytes=1 << 30, reserve_bytes=0, daily_write_bytes=1 << 30)
TAKES_NOTHING = DiskLimits(budget_bytes=1 << 30, reserve_bytes=0, daily_write_bytes=0)
PATIENCE_S = 0.4
COMPUTING_S = 0.0002
"""Of a token of a prompt: much longer than a drive that works takes to bring it."""

Start = Callable[..., Driver]


def next_token(state: int, last: int) -> int:
    return 97 + state % 3


def prompt(length: int, seed: int = 0) -> list[int]:
    return [(7 * i + seed * i * i + seed) % 256 for i in range(length)]


@pytest.fixture(autouse=True)
def _computing_takes_its_time(monkeypatch) -> None:
    """By the driver's clock every step takes as long, so that rows would seem to cost nothing."""
    monkeypatch.setattr(Pacer, "row_seconds", lambda pacer, depth: COMPUTING_S)


@pytest.fixture
def start(make_driver: Start, tmp_path: Path) -> Iterator[Start]:
    """start(): a process that begins, with nothing on its device and in its memory."""
    stores: list[KvStore] = []

    def begin(*, host_bytes: int = 0, disk: DiskLimits = ROOMY, num_pages: int = 64) -> Driver:
        settings = TierSettings(root=tmp_path, host_bytes=host_bytes, disk=disk)
        store = open_store(settings, b"m" * 16, PAGE_BYTES, "A model")
        assert store is not None
        stores.append(store)
        limits = small_limits(num_pages=num_pages, context_length=2000)
        return make_driver(limits, store=store, next_token=next_token)

    yield begin
    for store in stores:
        assert store.close(WAIT_S)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Set, it lets a drive that hangs go on; set at the end of the test in any case."""
    gate = threading.Event()
    yield gate
    gate.set()


def run(driver: Driver, name: str, tokens: list[int], count: int = 5) -> int:
    """Answer a prompt, and write what is to be kept; check the answer; returns the cached tokens."""
    driver.add(name, tokens, max_tokens=count)
    driver.run()
    assert driver.tokens(name) == continuation(tokens, count, next_token)
    assert driver.store.flush(WAIT_S)
    return driver.cached(name)


def before(monkeypatch, driver: Driver, call: str, wait: Callable[[], object]) -> None:
    """Have something happen before each `call` of the driver's folder."""
    folder = driver.store._folder
    method = getattr(folder, call)

    def later(*arguments):
        wait()
        return method(*arguments)

    monkeypatch.setattr(folder, call, later)


# -- writing


def test_a_slow_disk_loses_nothing_of_a_long_prompt(start, monkeypatch):
    """What the disk cannot take yet is left on the device until it can."""
    monkeypatch.setattr(store_module, "MAX_WRITING", 4)
    driver = start(num_pages=120)
    before(monkeypatch, driver, "write", lambda: time.sleep(0.005))
    run(driver, "first", prompt(1500))
    assert run(start(num_pages=120), "after a restart", prompt(1500)) == 1499


def test_an_engine_comes_to_rest_though_a_write_hangs(start, monkeypatch, gate):
    monkeypatch.setattr(store_module, "MAX_WRITING", 4)
    monkeypatch.setattr(saving, "PATIENCE_S", PATIENCE_S)
    driver = start()
    before(monkeypatch, driver, "write", lambda: gate.wait(WAIT_S))
    for index in range(3):
        driver.add(str(index), prompt(600, index), max_tokens=5)
        driver.run(200)
        assert driver.tokens(str(index)) == continuation(prompt(600, index), 5, next_token)
    assert driver.store.num_writing == 4


def test_a_disk_that_takes_nothing_costs_no_reading_at_every_turn(start):
    """What could not be written is in memory, and need not be read from the device to be tried again."""
    driver = start(host_bytes=1 << 22, disk=TAKES_NOTHING)
    num_read = 0
    save_pages = driver.table.save_pages

    def counting(pages) -> None:
        nonlocal num_read
        num_read += 1
        save_pages(pages)

    driver.table.save_pages = counting
    for turn in range(6):
        run(driver, str(turn), prompt(512))
    assert num_read <= 10  # 8 blocks and a part of one


# -- reading


def test_two_slow_restores_do_not_hold_up_who_has_nothing_to_wait_for(start, monkeypatch, gate):
    """A short prompt, a long one of which nothing is kept, and one of which there is less than a block."""
    first = start()
    for seed in (1, 2, 3):
        run(first, str(seed), prompt(300, seed))
    driver = start()
    before(monkeypatch, driver, "read", lambda: gate.wait(WAIT_S))
    for seed in (1, 2):
        driver.add(str(seed), prompt(300, seed), max_tokens=3)
    others = {"short": prompt(20, 4), "new": prompt(200, 5), "begins alike": prompt(40, 3) + prompt(100, 6)}
    for name, tokens in others.items():
        driver.add(name, tokens, max_tokens=3)
    driver.run_until(lambda: all(driver.reason(name) for name in others), 100)
    gate.set()
    driver.run()
    assert [driver.cached(str(seed)) for seed in (1, 2)] == [299, 299]


def test_a_disk_that_trickles_is_given_up(start, monkeypatch):
    """Something comes within every patience, and yet it takes far longer than computing."""
    run(start(), "first", prompt(900))
    driver = start()
    monkeypatch.setattr(restoring, "PATIENCE_S", 0.25)
    before(monkeypatch, driver, "read", lambda: time.sleep(0.1))
    assert run(driver, "second", prompt(900)) < 9 * 64  # of 14 blocks


def test_reads_that_hang_do_not_cost_every_later_chat_the_patience(start, monkeypatch, gate):
    first = start()
    for seed in range(6):
        run(first, str(seed), prompt(300, seed))
    driver = start()
    monkeypatch.setattr(restoring, "PATIENCE_S", PATIENCE_S)
    before(monkeypatch, driver, "read", lambda: gate.wait(WAIT_S))
    num_steps = []
    for seed in (9, *range(6)):  # of the first nothing is kept
        began = driver.now
        driver.add(str(seed), prompt(300, seed), max_tokens=3)
        driver.run_until(lambda seed=seed: driver.reason(str(seed)))
        num_steps.append(driver.now - began)
    usual, first, *_, fifth, sixth = num_steps
    assert first > usual + 20, "the drive was not waited for, so nothing is shown"
    assert max(fifth, sixth) < usual + 10  # the first ones have found out that either reader hangs


def test_a_drive_that_was_slow_once_is_tried_again(start):
    """It is thought twice as slow as computing, and only reading from it can show that it is not any more."""
    run(start(), "first", prompt(900))
    driver = start()
    driver.store._s_per_byte = 2 * COMPUTING_S * 16 / PAGE_BYTES
    cached = []
    while not cached or (not cached[-1] and len(cached) < 20):
        driver.clear()
        cached.append(run(driver, str(len(cached)), prompt(900)))
    assert cached[0] == 0, "copying was expected to be quicker, so nothing is shown"
    assert cached[-1] == 899


def test_a_restore_that_is_aborted_lets_its_reader_go(start):
    run(start(), "first", prompt(900))
    driver = start()
    driver.add("a", prompt(900), max_tokens=3)
    driver.step()
    fetch = driver.engine.state.restorer._open[0].fetch
    deadline = time.monotonic() + WAIT_S
    while len(fetch._pieces) < MOST_AHEAD and time.monotonic() < deadline:
        time.sleep(0.001)  # until the reader waits for room
    driver.abort("a")
    driver.run()
    assert not driver.engine.state.restorer.num_open
    assert all(reader.flush(2.0) for reader in driver.store._readers)

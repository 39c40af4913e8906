"""Conversations that outlive the process: engine and tiers together, a folder on disk between two of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine import restoring
from engine.fake_table import PAGE_BYTES, continuation, small_limits
from engine.tiers.disk_limits import DiskLimits
from engine.tiers.settings import TierSettings, open_store
from engine.tiers.store import KvStore

ROOMY = DiskLimits(budget_bytes=1 << 30, reserve_bytes=0, daily_write_bytes=1 << 30)


def next_token(state: int, last: int) -> int:
    return 97 + state % 3


def prompt(length: int, seed: int = 0) -> list[int]:
    return [(7 * i + seed * i * i + seed) % 256 for i in range(length)]


@pytest.fixture
def start(make_driver: Callable, tmp_path: Path) -> Iterator[Callable]:
    """start(): a process that begins, with nothing on its device and in its memory."""
    stores: list[KvStore] = []

    def begin(host_bytes: int = 1 << 20, **options):
        settings = TierSettings(root=tmp_path, host_bytes=host_bytes, disk=ROOMY)
        store = open_store(settings, b"m" * 16, PAGE_BYTES, "A model")
        assert store is not None
        stores.append(store)
        limits = small_limits(num_pages=64, context_length=900)
        return make_driver(limits, store=store, next_token=next_token, **options)

    yield begin
    for store in stores:
        assert store.close(5.0)


def run(driver, name: str, tokens: list[int], count: int = 5, **options) -> int:
    driver.add(name, tokens, max_tokens=count, **options)
    driver.run()
    assert driver.tokens(name) == continuation(tokens, count, next_token)
    assert driver.store.flush(5.0)
    return driver.cached(name)


@pytest.mark.parametrize("host_bytes", [0, 1 << 20])
def test_a_chat_goes_on_after_a_restart(start, host_bytes):
    tokens = prompt(500)
    assert run(start(), "first", tokens, 20) == 0
    answer = continuation(tokens, 20, next_token)
    driver = start(host_bytes=host_bytes)
    assert run(driver, "second", [*tokens, *answer, 1, 2, 3]) == 500 + 19
    assert driver.table.num_loaded == 33


def test_a_process_that_dies_in_the_midst_of_an_answer_has_kept_the_prompt(start):
    driver = start()
    driver.add("dies", prompt(400), max_tokens=400)
    while len(driver.tokens("dies")) < 300:
        driver.step()
    driver.store._writer.flush(5.0)  # and nothing more of that process is ever done
    assert run(start(), "next", [*prompt(400), 5, 6]) >= 400


def test_a_request_that_leaves_no_trace_on_disk(start):
    driver = start()
    run(driver, "private", prompt(300), persist=False)
    assert run(driver, "again", prompt(300)) == 299
    assert run(start(), "after", prompt(300)) == 299  # the second one did not opt out
    driver = start()
    run(driver, "other", prompt(300, 3), persist=False)
    assert run(start(), "later", prompt(300, 3)) == 0


def test_a_disk_that_never_answers_is_not_waited_for(start, monkeypatch):
    run(start(), "first", prompt(300))
    driver = start(host_bytes=0)
    monkeypatch.setattr(restoring, "PATIENCE_S", 0.1)
    monkeypatch.setattr(driver.store._folder, "read", lambda parent, key: time.sleep(1.0))
    began = time.monotonic()
    assert run(driver, "second", prompt(300)) == 0
    assert time.monotonic() - began < 5.0


def test_a_disk_that_fails_costs_a_computation(start, monkeypatch):
    run(start(), "first", prompt(300))
    driver = start(host_bytes=0)
    monkeypatch.setattr(driver.store._folder, "read", lambda parent, key: 1 / 0)
    assert run(driver, "second", prompt(300)) == 0


def test_others_are_answered_while_the_disk_is_slow(start, monkeypatch):
    run(start(), "first", prompt(300))
    driver = start(host_bytes=0)
    read = driver.store._folder.read

    def slowly(parent, key):
        time.sleep(0.05)
        return read(parent, key)

    monkeypatch.setattr(driver.store._folder, "read", slowly)
    driver.add("waits", prompt(300), max_tokens=5)
    driver.add("does not", prompt(20, 4), max_tokens=5)
    while driver.reason("does not") is None:
        driver.step()
    assert driver.tokens("waits") == []
    driver.run()
    assert driver.cached("waits") == 299


def test_copying_is_left_out_where_computing_is_quicker(start):
    run(start(), "first", prompt(300))
    driver = start(host_bytes=0)
    driver.store._s_per_byte = 1.0
    run(driver, "measures", prompt(40, 8))
    assert run(driver, "second", prompt(300)) == 0

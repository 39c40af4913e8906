"""What went wrong with conversations kept below the device, each by its symptom: engine and real folders, no threads.

Drives that are slow, hang or take nothing are in tests/engine/test_slow_drive.py.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine import prefix_cache
from engine.fake_table import PAGE_BYTES, Fault, continuation, small_limits
from engine.prefix_cache import PrefixCache
from engine.tiers.disk_limits import DiskLimits
from engine.tiers.fetch import Fetch
from engine.tiers.kv_block import decode
from engine.tiers.settings import TierSettings, open_store
from engine.tiers.store import KvStore
from engine.tiers.usage import clear
from tests.engine.conftest import Driver

ROOMY = DiskLimits(budget_bytes=1 << 30, reserve_bytes=0, daily_write_bytes=1 << 30)
MODEL = b"m" * 16
ROOMY_DEVICE = small_limits(num_pages=64, context_length=900)
Start = Callable[..., Driver]


def next_token(state: int, last: int) -> int:
    return 97 + state % 3


def prompt(length: int, seed: int = 0) -> list[int]:
    return [(7 * i + seed * i * i + seed) % 256 for i in range(length)]


@pytest.fixture
def start(make_driver: Start, tmp_path: Path) -> Iterator[Start]:
    """start(): a process that begins, with nothing on its device and in its memory; on_disk=False: without a folder."""
    stores: list[KvStore] = []

    def begin(limits=ROOMY_DEVICE, *, host_bytes: int = 1 << 22, on_disk: bool = True, **table) -> Driver:
        settings = TierSettings(root=tmp_path if on_disk else None, host_bytes=host_bytes, disk=ROOMY)
        store = open_store(settings, MODEL, PAGE_BYTES, "A model")
        assert store is not None
        stores.append(store)
        return make_driver(limits, store=store, **({"next_token": next_token} | table))

    yield begin
    for store in stores:
        assert store.close(5.0)


def run(driver: Driver, name: str, tokens: list[int], count: int = 5, **options) -> int:
    """Answer a prompt, and write what is to be kept; check the answer; returns the cached tokens."""
    driver.add(name, tokens, max_tokens=count, **options)
    driver.run()
    assert driver.tokens(name) == continuation(tokens, count, driver.table._next_token)
    assert driver.store.flush(5.0)
    return driver.cached(name)


def files(root: Path) -> list[Path]:
    return sorted(root.rglob("*.safetensors"))


def tokens_on_disk(root: Path) -> set[int]:
    """Every token of which a page on disk has a trace, in the part that nobody reads too."""
    pages = [decode(path.read_bytes(), MODEL, PAGE_BYTES).data for path in files(root)]
    return {token for data in pages for _, _, token in struct.iter_unpack("<iii", data)}


# -- private means private


@pytest.mark.parametrize("private", [{"use_cache": False}, {"persist": False}])
def test_the_unused_end_of_a_page_does_not_bring_a_private_chat_to_the_disk(start, tmp_path, private):
    driver = start(small_limits(num_pages=8, context_length=128), next_token=lambda state, last: 1)
    run(driver, "private", [*range(200, 250)] * 2, **private)
    driver.engine.state.cache.evict(8, driver.table.last_submitted)
    run(driver, "public", [*range(2, 68)])  # in the same pages, the last of which it fills in part
    assert len(files(tmp_path)) == 2
    assert max(tokens_on_disk(tmp_path)) < 200


def test_a_page_copied_from_a_private_chat_does_not_bring_its_end_to_the_disk(start, tmp_path):
    driver = start(next_token=lambda state, last: 1)
    common = [*range(2, 68)]
    run(driver, "private", [*common, *range(200, 214)], persist=False)
    assert run(driver, "public", [*common, 5]) == len(common)
    assert driver.table.num_copied == 1
    assert max(tokens_on_disk(tmp_path)) < 200


# -- gone means gone


@pytest.mark.parametrize("how", ["aborted after", "aborted before", "answered to the end"])
def test_a_chat_that_is_deleted_while_it_answers_stays_deleted(start, tmp_path, how):
    driver = start()
    driver.add("a", prompt(300), max_tokens=200, chat="one")
    driver.run_until(lambda: len(driver.tokens("a")) >= 100)
    if how == "aborted before":
        driver.abort("a")
    forget(driver, "one")
    if how == "aborted after":
        driver.abort("a")
    driver.run()
    assert driver.store.flush(5.0)
    assert files(tmp_path) == [] and len(driver.store._host) == 0


@pytest.mark.parametrize("chat", ["one", None])
def test_what_the_device_is_just_handing_over_is_forgotten_too(start, tmp_path, chat):
    driver = start(delay=4)
    driver.add("a", prompt(300), max_tokens=3, chat="one")
    driver.run_until(lambda: any(step.saving for step in driver.engine.state.in_flight))
    driver.abort("a")
    forget(driver, chat)
    driver.run()
    assert driver.store.flush(5.0)
    assert files(tmp_path) == [] and len(driver.store._host) == 0


def test_a_chat_deleted_beside_another_one_takes_nothing_of_that_along(start, tmp_path):
    driver = start(delay=4)
    driver.add("a", prompt(300, 1), max_tokens=3, chat="one")
    driver.add("b", prompt(300, 2), max_tokens=3, chat="two")
    driver.run_until(lambda: driver.reason("b"))  # from now on nobody says anew what of it is to be kept
    steps = driver.engine.state.in_flight
    driver.run_until(lambda: any(step.saving and step.saving.chat == "two" for step in steps))
    forget(driver, "one")
    driver.run()
    assert driver.store.flush(5.0)
    assert run(start(), "b", prompt(300, 2)) == 299 and len(files(tmp_path)) == 5


@pytest.mark.parametrize("options", [{"on_disk": False}, {"persist": False}])
def test_a_chat_that_is_in_memory_only_can_be_deleted(start, options):
    driver = start(on_disk=options.get("on_disk", True))
    persist = options.get("persist", True)
    run(driver, "a", prompt(300), chat="one", persist=persist)
    run(driver, "b", prompt(300, 1), chat="two", persist=persist)
    assert len(driver.store._host) == 10
    forget(driver, "one")
    assert driver.store.flush(5.0)
    assert len(driver.store._host) == 5


def forget(driver: Driver, chat: str | None) -> None:
    """What an engine with threads does about it."""
    if chat is None:
        driver.clear()
    else:
        driver.engine.forget(chat)
    driver.store.forget(chat)


# -- memory is scarce


@pytest.mark.parametrize("open_at_once", [1, 2, 3])
def test_ten_chats_in_the_memory_of_three_are_not_computed_again(start, open_at_once):
    """Each waits for its turn already when one before it ends, so that the device is never idle."""
    limits = small_limits(num_pages=64, context_length=400, max_rows=64)
    driver = start(limits, on_disk=False, delay=2)
    chats = [prompt(250, seed) for seed in range(10)]
    for turn in range(4):
        for index, tokens in enumerate(chats):
            driver.add(f"{turn} {index}", tokens, max_tokens=100)
            while len(driver.engine.state.ledger) >= open_at_once:
                step(driver)
    while driver.engine.has_work:
        step(driver)
    for turn in (2, 3):
        assert sum(driver.cached(f"{turn} {index}") for index in range(10)) >= 0.8 * 10 * 250


def step(driver: Driver) -> None:
    """A step that takes as long as on a small GPU: reading and loading pages costs little beside computing."""
    before = driver.table.num_rows
    driver.now -= 1.0
    driver.step()
    num_rows = driver.table.num_rows - before
    driver.now += 0.025 + 0.001 * num_rows if num_rows else 0.002


def test_a_new_chat_does_not_wait_long_for_pages_of_old_ones_that_are_to_be_kept(start):
    """Beside a stream they are read at leisure, unless somebody needs them: a block in 30 steps would be the pace."""
    driver = start(small_limits(num_pages=36, context_length=500, max_rows=64), on_disk=False)
    driver.add("runs", prompt(20), max_tokens=400)
    driver.run_until(lambda: driver.tokens("runs"))
    driver.add("old", prompt(420, 1), max_tokens=2)
    driver.run_until(lambda: driver.reason("old"))
    assert driver.engine.state.saver.num_queued >= 3, "it was read already, so nothing is shown"
    driver.add("new", prompt(330, 2), max_tokens=3)
    before = len(driver.tokens("runs"))
    driver.run_until(lambda: not driver.engine.state.waiting)
    assert len(driver.tokens("runs")) - before <= 20
    driver.run()
    driver.reload()
    assert run(driver, "again", prompt(420, 1)) == 419  # nothing was given up


@pytest.mark.parametrize("num_pages", [200, 600])
def test_streams_go_on_between_loads_also_in_a_full_pool(start, num_pages):
    """Old chats have all pages that are not in use, as they do after a while."""
    limits = small_limits(num_pages=num_pages, context_length=1600, max_rows=128)
    driver = start(limits, on_disk=False, delay=2)
    run(driver, "kept", prompt(1200, 1))
    driver.reload()
    for index in range(9):
        run(driver, f"old {index}", prompt(300, 10 + index))
    driver.add("stream", prompt(3), max_tokens=150)
    driver.run_until(lambda: driver.tokens("stream"))
    driver.add("comes back", prompt(1200, 1), max_tokens=3)
    driver.run_until(lambda: driver.engine.state.restorer.num_open)
    loads_between: list[int] = [0]
    while driver.engine.state.restorer.num_open:
        num_tokens, num_loaded = len(driver.tokens("stream")), driver.table.num_loaded
        driver.step()
        loads_between[-1] += driver.table.num_loaded > num_loaded
        if len(driver.tokens("stream")) > num_tokens:
            loads_between.append(0)
    assert sum(loads_between) >= 18 and max(loads_between) <= 3
    driver.run()
    assert driver.cached("comes back") == 1199
    assert driver.tokens("stream") == continuation(prompt(3), 150, next_token)


def test_host_memory_keeps_the_beginning_of_a_chat(start):
    """A beginning is of use without the end, and an end without the beginning is of none."""
    driver = start(on_disk=False, host_bytes=10 * 4 * PAGE_BYTES)
    run(driver, "a", prompt(8 * 64, 1), 1)
    run(driver, "b", prompt(4 * 64, 2), 1)
    driver.reload()
    assert run(driver, "again", prompt(8 * 64, 1), 1) == 6 * 64  # as many blocks as fit beside the other chat's


def test_coming_back_takes_a_long_chat_no_longer_for_each_block_than_a_short_one(start, monkeypatch):
    """Counted in look-ups in the tree, of which there are a few for each page."""
    limits = small_limits(num_pages=300, context_length=4000, max_rows=128)
    looked_up = count_lookups(monkeypatch)
    per_page = []
    for length in (1000, 4000 - 100):
        driver = start(limits, on_disk=False)
        run(driver, "first", prompt(length))
        driver.reload()
        driver.add("second", prompt(length), max_tokens=2)
        looked_up.clear()
        driver.run_until(lambda driver=driver: driver.engine.state.prefilling or driver.engine.state.running)
        per_page.append(len(looked_up) / (length / 16))
        driver.run()
        assert driver.cached("second") == length - 1
    assert max(per_page) < 12 and per_page[1] < 1.5 * per_page[0]


def count_lookups(monkeypatch) -> list[int]:
    """A list that grows by one at each look-up in a prefix cache."""
    looked_up: list[int] = []
    step, nearest = PrefixCache._step, prefix_cache._nearest

    def counting_step(cache, node, edge):
        looked_up.append(1)
        return step(cache, node, edge)

    def counting_nearest(node, edge):
        looked_up.append(1)
        return nearest(node, edge)

    monkeypatch.setattr(PrefixCache, "_step", counting_step)
    monkeypatch.setattr(prefix_cache, "_nearest", counting_nearest)
    return looked_up


# -- what others do


def test_pages_whose_load_failed_are_not_built_on(start):
    """The step was submitted, and only its end says that nothing of it reached the device."""
    run(start(), "first", prompt(300))
    driver = start()
    table = driver.table
    load, num_failed = table._load, 0

    def fail_once(step) -> None:
        nonlocal num_failed
        if num_failed:
            load(step)
            return
        num_failed += 1
        table.faults.append(Fault("retire", table.last_submitted + 1, RuntimeError("moved nothing")))

    table._load = fail_once
    run(driver, "second", prompt(300))
    assert num_failed == 1 and not table.faults


def test_who_waited_for_a_disk_in_vain_is_not_held_up_by_another_one(start, monkeypatch):
    """Memory is too scarce for the other one, and nothing but the end of the reading changes."""
    driver = start(small_limits(num_pages=30, context_length=460, max_rows=64), on_disk=False)
    run(driver, "kept", prompt(70, 5))
    driver.reload()
    driver.add("runs", prompt(240, 1), max_tokens=120)
    driver.run_until(lambda: driver.tokens("runs"))
    fetch = Fetch()
    monkeypatch.setattr(driver.store, "fetch", lambda found, patience_s: fetch)
    driver.add("small", prompt(70, 5), max_tokens=2)
    driver.add("big", prompt(300, 2), max_tokens=30)
    driver.run_until(lambda: driver.engine.state.is_blocked() and len(driver.tokens("runs")) % 16 == 5, 50)
    fetch.finish()
    before = len(driver.tokens("runs"))
    driver.run_until(lambda: all(each.request.request_id != "small" for each in driver.engine.state.waiting), 50)
    assert len(driver.tokens("runs")) - before <= 3
    driver.run()


@pytest.mark.parametrize("host_bytes, num_turns", [(1 << 22, 1), (0, 2)])
def test_a_folder_that_another_process_has_cleared_fills_again(start, tmp_path, host_bytes, num_turns):
    """From memory, with the next block that is written; what is not there any more is read from the device again."""
    driver = start(host_bytes=host_bytes)
    tokens = prompt(300)
    run(driver, "first", tokens)
    clear(tmp_path)
    for turn in range(num_turns):  # without memory the first one only finds out
        tokens += prompt(40, 3 + turn)
        run(driver, f"turn {turn}", tokens)
    assert run(start(), "after a restart", tokens) == len(tokens) - 1

"""Many chats over little memory: what they have in common is stored once, and changing between them costs a copy."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.fake_table import PAGE_BYTES, continuation, small_limits
from engine.tiers.disk_limits import DiskLimits
from engine.tiers.kv_block import encode
from engine.tiers.settings import TierSettings, open_store
from engine.tiers.store import KvStore
from tests.engine.tiers.blocks import make_block

ROOMY = DiskLimits(budget_bytes=1 << 30, reserve_bytes=0, daily_write_bytes=1 << 30)
PAGES_OF_1000 = 63


def next_token(state: int, last: int) -> int:
    return 97 + state % 3


def words(count: int, seed: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(256) for _ in range(count)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[KvStore]:
    settings = TierSettings(root=tmp_path, host_bytes=1 << 26, disk=ROOMY)
    store = open_store(settings, b"m" * 16, PAGE_BYTES, "A model")
    assert store is not None
    yield store
    assert store.close(10.0)


def run(driver, name: str, tokens: list[int], count: int = 5) -> int:
    """Answer a prompt; returns how many tokens of it were computed."""
    before = driver.table.num_rows
    driver.add(name, tokens, max_tokens=count)
    driver.run()
    assert driver.tokens(name) == continuation(tokens, count, next_token)
    assert driver.store.flush(10.0)
    return driver.table.num_rows - before - (count - 1)


def test_a_common_system_prompt_is_stored_once(make_driver: Callable, store: KvStore, tmp_path: Path) -> None:
    """1,000 tokens are 15 whole blocks and a part of one, which each chat has with what follows it."""
    system = words(1000, 0)
    chats = [system + words(100, seed) for seed in (1, 2)]
    limits = small_limits(num_pages=200, context_length=1200, max_rows=128)
    whole_bytes = len(encode(make_block(bytes(16), tuple(range(64)), PAGE_BYTES), b"m" * 16))
    sizes = []
    for index, chat in enumerate(chats):
        run(make_driver(limits, store=store, next_token=next_token), str(index), chat)
        files = list(tmp_path.rglob("*.safetensors"))
        sizes.append((len(files), sum(path.stat().st_size for path in files)))
    (first, first_bytes), (second, second_bytes) = sizes
    assert first == 18  # 1,104 tokens
    assert second == first + 3
    assert second_bytes - first_bytes <= 3 * whole_bytes * 1.1
    assert second_bytes >= second * 4 * PAGE_BYTES / 2


@pytest.mark.parametrize("host_bytes", [1 << 26, 0])
def test_ten_chats_in_the_memory_of_three(make_driver: Callable, tmp_path: Path, host_bytes: int) -> None:
    """Round robin, which is the worst for what goes by the last use: nobody's pages are there when it comes again."""
    settings = TierSettings(root=tmp_path, host_bytes=host_bytes, disk=ROOMY)
    store = open_store(settings, b"m" * 16, PAGE_BYTES, "A model")
    assert store is not None
    limits = small_limits(num_pages=3 * PAGES_OF_1000, context_length=1100, max_rows=128)
    driver = make_driver(limits, store=store, next_token=next_token, delay=2)
    chats = [words(1000, seed) for seed in range(10)]
    try:
        for index, tokens in enumerate(chats):
            assert run(driver, f"first {index}", tokens) == 1000
        for turn in (2, 3):
            for index, tokens in enumerate(chats):
                tokens += [*continuation(tokens, 5, next_token), *words(15, turn)]
                loaded = driver.table.num_loaded
                assert run(driver, f"{turn} {index}", tokens) <= len(tokens) / 10
                assert driver.table.num_loaded - loaded >= PAGES_OF_1000 - 1, "it was still there, so nothing is shown"
    finally:
        assert store.close(10.0)

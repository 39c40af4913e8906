"""The tiers behind one face: what was put in comes out again, after a restart too; what is wrong costs time only."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.tiers.chain import chain, root_key
from engine.tiers.disk_limits import DiskLimits
from engine.tiers.fetch import Piece
from engine.tiers.host import HostTier
from engine.tiers.kv_block import KvBlock
from engine.tiers.settings import TierSettings, forget_on_disk, open_store
from engine.tiers.store import KvStore

PAGE_BYTES = 32
MODEL, OTHER = b"m" * 16, b"o" * 16
ROOMY = DiskLimits(budget_bytes=1 << 30, reserve_bytes=0, daily_write_bytes=1 << 30)
LAST = 5000
Open = Callable[..., KvStore]


@pytest.fixture
def open_tiers(tmp_path: Path) -> Iterator[Open]:
    opened: list[KvStore] = []

    def make(fingerprint: bytes = MODEL, host_bytes: int = 1 << 20, disk: DiskLimits = ROOMY) -> KvStore:
        settings = TierSettings(root=tmp_path, host_bytes=host_bytes, disk=disk)
        store = open_store(settings, fingerprint, PAGE_BYTES, "A model")
        assert store is not None
        opened.append(store)
        return store

    yield make
    for store in opened:
        assert store.close(5.0)


def tokens_of(length: int, seed: int = 0) -> list[int]:
    return [random.Random(1000 * seed + i).randrange(1000) for i in range(length)]


def blocks_of(tokens: list[int], fingerprint: bytes = MODEL) -> list[KvBlock]:
    found = []
    for parent, key, positions in chain(root_key(fingerprint), tokens):
        pages = -(-len(positions) // 16)
        found.append(KvBlock(parent, tuple(tokens[positions.start : positions.stop]), key * 2 * pages))
    return found


def keep(store: KvStore, tokens: list[int], *, persist: bool = True, chat: str | None = None) -> None:
    blocks = blocks_of(tokens, store.fingerprint)
    for block in blocks:
        if not store.keeps(block.key, persist=persist):
            store.put(block, persist=persist)
    if chat is not None:
        store.own(chat, [block.key for block in blocks], persist=persist)
    assert store.flush(5.0)


def bring(store: KvStore, tokens: list[int], have: int = 0) -> list[Piece]:
    found = store.find([*tokens, LAST], have)  # the last token of a prompt is computed whatever there is
    if found is None:
        return []
    fetch = store.fetch(found, 5.0)
    pieces = []
    while not fetch.done:
        fetch.wait(5.0)
        piece = fetch.take()
        if piece is not None:
            pieces.append(piece)
    return pieces


def num_tokens(pieces: list[Piece]) -> int:
    return sum(piece.num_fitting for piece in pieces)


@pytest.mark.parametrize("length", [40, 64, 65, 128, 300])
def test_what_was_kept_is_there_after_a_restart(open_tiers, length):
    tokens = tokens_of(length)
    keep(open_tiers(), tokens)
    pieces = bring(open_tiers(), tokens)
    assert [piece.block for piece in pieces] == blocks_of(tokens)
    assert [piece.first for piece in pieces] == list(range(0, length, 64))
    assert num_tokens(pieces) == length


def test_other_models_do_not_see_it(open_tiers):
    tokens = tokens_of(200)
    keep(open_tiers(), tokens)
    assert bring(open_tiers(OTHER), tokens) == []


@pytest.mark.parametrize("common", [1, 63, 64, 65, 100, 170])
def test_another_chat_gets_what_is_common_to_the_token(open_tiers, common):
    one = tokens_of(200)
    keep(open_tiers(), one)
    assert num_tokens(bring(open_tiers(), one[:common] + tokens_of(60, 7))) == common


def test_only_what_is_not_there_yet_is_brought(open_tiers):
    tokens = tokens_of(300)
    keep(open_tiers(), tokens)
    pieces = bring(open_tiers(), tokens, have=150)
    assert [piece.first for piece in pieces] == [128, 192, 256]
    assert bring(open_tiers(), tokens, have=299) == [] or num_tokens(bring(open_tiers(), tokens, have=299)) == 44


def test_a_common_prompt_is_on_disk_once(open_tiers, tmp_path):
    store, system = open_tiers(), tokens_of(192)
    keep(store, system + tokens_of(30, 1))
    keep(store, system + tokens_of(30, 2))
    assert len(list(tmp_path.rglob("*.safetensors"))) == 3 + 2


def test_the_longer_block_takes_the_shorter_ones_place(open_tiers, tmp_path):
    store, tokens = open_tiers(), tokens_of(64)
    for length in (20, 40, 64):
        keep(store, tokens[:length])
    assert len(list(tmp_path.rglob("*.safetensors"))) == 1
    keep(open_tiers(), tokens[:30])  # said already by the longer one
    assert len(list(tmp_path.rglob("*.safetensors"))) == 1
    assert num_tokens(bring(open_tiers(), tokens)) == 64


def test_nothing_is_written_twice(open_tiers, tmp_path):
    store = open_tiers()
    keep(store, tokens_of(256))
    before = {path: path.stat().st_ino for path in tmp_path.rglob("*.safetensors")}
    keep(open_tiers(), tokens_of(256))
    assert {path: path.stat().st_ino for path in tmp_path.rglob("*.safetensors")} == before


def test_a_request_that_opts_out_stays_in_memory(open_tiers, tmp_path):
    store, tokens = open_tiers(), tokens_of(100)
    keep(store, tokens, persist=False)
    assert list(tmp_path.rglob("*.safetensors")) == []
    assert num_tokens(bring(store, tokens)) == 100
    keep(store, tokens, persist=True)
    assert num_tokens(bring(open_tiers(), tokens)) == 100


def test_memory_is_bounded_and_the_disk_has_the_rest(open_tiers):
    store = open_tiers(host_bytes=3 * 4 * PAGE_BYTES)
    keep(store, tokens_of(640))
    assert len(store._host) == 3
    assert num_tokens(bring(store, tokens_of(640))) == 640


def test_of_one_conversation_memory_forgets_the_end_first(open_tiers):
    store = open_tiers(host_bytes=10 * 4 * PAGE_BYTES)
    keep(store, tokens_of(512, 1), persist=False)
    bring(store, tokens_of(512, 1))
    keep(store, tokens_of(256, 2), persist=False)
    assert num_tokens(bring(store, tokens_of(512, 1))) == 6 * 64


@pytest.mark.parametrize("seed", range(20))
def test_a_spoiled_block_is_dropped_and_what_precedes_it_used(open_tiers, tmp_path, seed):
    tokens, chance = tokens_of(320), random.Random(seed)
    keep(open_tiers(), tokens)
    files = [next(tmp_path.rglob(f"*-{block.key.hex()}.safetensors")) for block in blocks_of(tokens)]
    victim = chance.randrange(5)
    content = bytearray(files[victim].read_bytes())
    match seed % 4:
        case 0:
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        case 1:
            del content[chance.randrange(len(content)) :]
        case 2:
            content = bytearray(files[(victim + 1) % 5].read_bytes())
        case 3:
            content = bytearray(len(content))
    files[victim].write_bytes(content)
    store = open_tiers()
    assert [piece.block for piece in bring(store, tokens)] == blocks_of(tokens)[:victim]
    assert not files[victim].exists()
    keep(store, tokens)
    assert num_tokens(bring(open_tiers(), tokens)) == 320


def test_a_deleted_chat_takes_along_what_is_its_own(open_tiers):
    store, system = open_tiers(), tokens_of(128)
    keep(store, system + tokens_of(100, 1), chat="one")
    keep(store, system + tokens_of(100, 2), chat="two")
    store.forget("one")
    assert store.flush(5.0)
    for again in (store, open_tiers()):
        assert num_tokens(bring(again, system + tokens_of(100, 1))) == 128
        assert num_tokens(bring(again, system + tokens_of(100, 2))) == 228


def test_a_chat_is_forgotten_without_its_model(open_tiers, tmp_path):
    keep(open_tiers(), tokens_of(100, 1), chat="one")
    keep(open_tiers(OTHER), tokens_of(100, 1), chat="two")
    forget_on_disk(tmp_path, "one")
    assert bring(open_tiers(), tokens_of(100, 1)) == []
    assert num_tokens(bring(open_tiers(OTHER), tokens_of(100, 1))) == 100


def test_everything_is_forgotten(open_tiers, tmp_path):
    store = open_tiers()
    keep(store, tokens_of(100, 1))
    keep(open_tiers(OTHER), tokens_of(100, 2))
    store.answers.remember("An answer.", (1, 2, 3), None)
    assert store.flush(5.0) and store.answers.recall("An answer.") == (1, 2, 3)
    store.forget(None)
    assert store.flush(5.0)
    assert list(tmp_path.rglob("*.safetensors")) == []
    assert bring(store, tokens_of(100, 1)) == []
    assert store.answers.recall("An answer.") is None


def test_answers_outlive_the_process(open_tiers):
    store = open_tiers()
    store.answers.remember("An answer.", (1, 2, 3), "chat")
    assert store.flush(5.0)
    assert open_tiers().answers.recall("An answer.") == (1, 2, 3)
    assert open_tiers(OTHER).answers.recall("An answer.") is None


def test_a_model_without_a_fingerprint_has_no_tiers(tmp_path):
    assert open_store(TierSettings(root=tmp_path), b"", PAGE_BYTES, "A model") is None


def test_a_full_disk_keeps_the_conversation_in_memory(open_tiers, tmp_path):
    store, tokens = open_tiers(disk=DiskLimits(budget_bytes=0, reserve_bytes=0, daily_write_bytes=0)), tokens_of(200)
    keep(store, tokens)
    assert list(tmp_path.rglob("*.safetensors")) == []
    assert num_tokens(bring(store, tokens)) == 200


def test_a_fetch_that_nobody_wants_any_more_ends(open_tiers):
    keep(open_tiers(), tokens_of(64 * 30))
    store = open_tiers(host_bytes=0)
    found = store.find(tokens_of(64 * 30), 0)
    assert found is not None
    fetch = store.fetch(found, 5.0)
    fetch.wait(5.0)
    fetch.cancel()
    assert fetch.done and all(reader.flush(5.0) for reader in store._readers)


@pytest.mark.parametrize("persist", [True, False])
def test_a_chat_that_is_in_memory_only_is_forgotten(persist):
    """Without a folder everything is; the owner of a block is known all the same."""
    store, system = KvStore(MODEL, PAGE_BYTES, HostTier(1 << 20), None, None), tokens_of(128)
    keep(store, system + tokens_of(100, 1), persist=persist, chat="one")
    keep(store, system + tokens_of(100, 2), persist=persist, chat="two")
    store.forget("one")
    assert num_tokens(bring(store, system + tokens_of(100, 1))) == 128
    assert num_tokens(bring(store, system + tokens_of(100, 2))) == 228
    store.forget("two")
    assert len(store._host) == 0


def test_an_answer_that_comes_after_its_chat_was_forgotten_is_not_kept(open_tiers):
    store = open_tiers()
    store.forget("one")
    assert store.flush(5.0)
    store.answers.remember("An answer.", (1, 2, 3), "one")
    store.answers.remember("Another one.", (4, 5, 6), "two")
    assert store.flush(5.0)
    assert store.answers.recall("An answer.") is None
    assert store.answers.recall("Another one.") == (4, 5, 6)


def test_owners_of_blocks_that_are_gone_are_forgotten(open_tiers, tmp_path):
    """One chat goes on for months, in a folder that holds little of it at a time."""
    store = open_tiers(host_bytes=0, disk=DiskLimits(budget_bytes=8_000, reserve_bytes=0, daily_write_bytes=1 << 30))
    for seed in range(12):
        keep(store, tokens_of(300, seed), chat="one")
    num_files = len(list(tmp_path.rglob("*.safetensors")))
    with contextlib.closing(sqlite3.connect(tmp_path / "notes.db")) as notes:
        [num_owners] = notes.execute("SELECT count(*) FROM owners").fetchone()
    assert 0 < num_files <= num_owners <= 2 * num_files


def test_a_block_without_what_precedes_it_is_not_written(open_tiers, tmp_path):
    store = open_tiers(host_bytes=0)
    store.put(blocks_of(tokens_of(128))[1], persist=True)
    assert store.flush(5.0)
    assert list(tmp_path.rglob("*.safetensors")) == []

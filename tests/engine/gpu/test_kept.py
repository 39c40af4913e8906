"""SmolLM2's conversations from host memory and from disk: the same bits as computed, and nothing computed twice.

Every device that something is restored to was spoiled before, so that a page that did not come is no number.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from engine.function_table import Row
from engine.loader import load_model
from engine.loading import LoadedModel, LoadOptions
from engine.tiers.store import KvStore
from tests.engine.gpu.conftest import Logits, load_quietly, table_of
from tests.engine.gpu.keeping import Keeper, open_tiers
from tests.engine.gpu.test_bit_equal import run_step
from tests.engine.gpu.test_serving import _text_ids

LENGTHS = (33, 47, 48, 49, 63, 64, 65, 79, 80, 81, 127, 128, 129)
"""Around the ends of pages and of kv blocks."""

POOL = 12
NUM_TOKENS = 8
NUM_CHATS, CHAT_TOKENS = 10, 1000


class Conversation:
    """One that grew turn by turn on one device, what is kept of it, and another device that never saw it."""

    def __init__(self, model: LoadedModel, fresh: LoadedModel, root: Path) -> None:
        self.model, self.fresh, self.root = model, fresh, root
        self.ids = _text_ids(model, LENGTHS[-1])
        self.store = open_tiers(model, root)
        self.stores = [self.store]
        self._teller = Keeper(model, self.store)

    def tell(self, length: int) -> None:
        """A turn that has so many tokens of it computed and kept."""
        self._teller.tell(f"turn of {length}", self.ids[:length], 1)

    def restorer(self, tier: str) -> Keeper:
        """A process that begins: on the other device, with memory as it is or with nothing but the disk."""
        store = self.store if tier == "memory" else open_tiers(self.fresh, self.root, host_bytes=0)
        self.stores.append(store)
        return Keeper(self.fresh, store, num_pages=POOL, keep_logits=True)

    def cold(self) -> Keeper:
        """The same without anything kept."""
        return Keeper(self.fresh, None, num_pages=POOL, keep_logits=True)

    def check(self, found: Logits, expected: Logits, what: str) -> None:
        """The same bits on a software adapter; elsewhere roundings may differ."""
        if self.model.software_adapter:
            np.testing.assert_array_equal(found, expected, what)
        else:
            np.testing.assert_allclose(found, expected, atol=5e-2, rtol=0)


@pytest.fixture(scope="module", params=["f16", "f32"])
def conversation(
    request: pytest.FixtureRequest, model_of: Callable, starter_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Conversation]:
    fresh = load_quietly(starter_path, kv_type=request.param)
    model = model_of(starter_path, kv_type=request.param)
    conversation = Conversation(model, fresh, tmp_path_factory.mktemp("kept"))
    yield conversation
    for store in conversation.stores:
        assert store.close(5.0)
    fresh.table.close()


def logits_after(model: LoadedModel, ids: list[int]) -> dict[int, Logits]:
    """Computed anew, in one go: the logits after the first `length` tokens, for each length."""
    table = table_of(model)
    table.set_pages(0, 0, range(-(-len(ids) // 16)))
    found = {}
    for chunk in (range(0, 100), range(100, len(ids))):
        rows = [Row(ids[position], position, 0) for position in chunk]
        lengths = [length for length in LENGTHS if length - 1 in chunk]
        logits = run_step(table, rows, [length - 1 - chunk.start for length in lengths])
        assert logits is not None
        found |= dict(zip(lengths, logits, strict=True))
    return found


def test_after_each_turn_the_next_process_has_the_same_bits(conversation: Conversation) -> None:
    expected = logits_after(conversation.fresh, conversation.ids)
    for length in LENGTHS:
        conversation.tell(length)
        for tier in ("memory", "disk"):
            server = conversation.restorer(tier)
            server.tell("again", conversation.ids[:length], 1)
            assert server.cached("again") == length - 1, (tier, length)
            assert [row.position for row in server.table.rows] == [length - 1]
            conversation.check(server.logits["again"][0], expected[length], f"{length} tokens from {tier}")


def test_a_continuation_has_the_same_bits(conversation: Conversation) -> None:
    """Of a conversation that is kept further than it is asked for."""
    length = 65
    conversation.tell(LENGTHS[-1])
    cold = conversation.cold()
    cold.tell("cold", conversation.ids[:length], NUM_TOKENS)
    for tier in ("memory", "disk"):
        server = conversation.restorer(tier)
        server.tell("again", conversation.ids[:length], NUM_TOKENS, persist=False)
        assert server.cached("again") == length - 1
        if conversation.model.software_adapter:
            assert server.tokens["again"] == cold.tokens["cold"]
        for place in range(NUM_TOKENS):
            conversation.check(server.logits["again"][place], cold.logits["cold"][place], f"{tier}, token {place}")


@pytest.mark.parametrize("common", [17, 75])
def test_a_branch_inside_a_block(conversation: Conversation, common: int) -> None:
    """Another conversation begins alike; what follows in the block it shares is not taken for its own."""
    conversation.tell(LENGTHS[-1])
    branch = [*conversation.ids[:common], 1000, *conversation.ids[9:0:-1]]
    cold = conversation.cold()
    cold.tell("cold", branch, 4)
    for tier in ("memory", "disk"):
        server = conversation.restorer(tier)
        server.tell("branch", branch, 4, persist=False)
        assert server.cached("branch") == common
        for place in range(4):
            conversation.check(server.logits["branch"][place], cold.logits["cold"][place], f"{tier}, token {place}")


@pytest.mark.long
def test_ten_chats_in_the_memory_of_three_change_places(starter_path: Path, tmp_path: Path) -> None:
    """Each turn of the second round costs a tenth of its prefill at most, in rows and in seconds to the first token."""
    model = load_model(
        LoadOptions(model=starter_path, context=1152, total_tokens=3456), lambda progress: None, lambda: False
    )
    store = open_tiers(model, tmp_path)
    try:
        cold, warm = _two_rounds(model, store)
    finally:
        assert store.close(10.0)
        model.table.close()
    ratio = statistics.median(warm) / statistics.median(cold)
    print(f"cold {statistics.median(cold):.2f} s, switched to {statistics.median(warm):.2f} s, ratio {ratio:.3f}")
    assert ratio <= 0.10


def _two_rounds(model: LoadedModel, store: KvStore) -> tuple[list[float], list[float]]:
    """Seconds to the first token of each chat, computed and then restored; the last chats' tokens are compared."""
    server = Keeper(model, store, num_pages=3 * (CHAT_TOKENS // 16 + 3))
    text = _text_ids(model, NUM_CHATS * CHAT_TOKENS)
    chats = [text[index * CHAT_TOKENS : (index + 1) * CHAT_TOKENS] for index in range(NUM_CHATS)]
    cold, warm = [], []
    for index, chat in enumerate(chats):
        cold.append(_first_token_s(server, f"cold {index}", chat))
        assert server.cached(f"cold {index}") < 16
    for index, chat in enumerate(chats):
        before = len(server.table.rows)
        warm.append(_first_token_s(server, f"warm {index}", [*chat, *text[:10]]))
        assert len(server.table.rows) - before <= CHAT_TOKENS / 10
        assert server.cached(f"warm {index}") >= CHAT_TOKENS
    server.tell("check", [*chats[-1], *text[:10]], 2, use_cache=False)
    assert server.tokens["check"] == server.tokens[f"warm {NUM_CHATS - 1}"]
    return cold, warm


def _first_token_s(server: Keeper, name: str, prompt: list[int], **options) -> float:
    began = time.perf_counter()
    server.add(name, prompt, 2, ignore_eos=True, **options)
    server.run(lambda: bool(server.tokens[name]))
    seconds = time.perf_counter() - began
    server.run()
    return seconds

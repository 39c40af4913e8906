"""Conversations that leave the device and come back: through the prefix cache's own face, from host memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from engine.fake_table import PAGE_BYTES, Fault, continuation, small_limits
from engine.tiers.chain import chain
from engine.tiers.host import HostTier
from engine.tiers.store import KvStore

PLENTY = 1 << 20


@pytest.fixture
def store() -> Iterator[KvStore]:
    store = KvStore(b"a model", PAGE_BYTES, HostTier(PLENTY), None, None)
    yield store
    store.close(5.0)


def next_token(state: int, last: int) -> int:
    return 97 + state % 3


@pytest.fixture
def driver(make_driver: Callable, store: KvStore):
    return make_driver(small_limits(num_pages=40, context_length=512), store=store, delay=2, next_token=next_token)


def prompt(length: int, seed: int = 0) -> list[int]:
    return [(7 * i + seed * i * i + seed) % 256 for i in range(length)]


def run(driver, name: str, tokens: list[int], count: int = 5, **options) -> int:
    """Answer a prompt; check the answer; returns the cached tokens."""
    driver.add(name, tokens, max_tokens=count, **options)
    driver.run()
    assert driver.tokens(name) == continuation(tokens, count, next_token)
    return driver.cached(name)


def test_a_prompt_comes_back_to_the_token_after_the_device_forgot_it(driver):
    tokens = prompt(200)
    assert run(driver, "cold", tokens) == 0
    driver.reload()
    assert run(driver, "warm", tokens) == 199
    assert driver.table.num_loaded == 13 and driver.table.num_rows == 1 + 4


def test_the_next_turn_reuses_the_answer_too(driver):
    tokens = prompt(150)
    run(driver, "first", tokens, 30)
    driver.reload()
    answer = continuation(tokens, 30, next_token)
    # the last token drawn was never fed back, so nothing was computed for it
    assert run(driver, "second", [*tokens, *answer, *prompt(20, 3)]) == 150 + 29


def test_what_the_tree_still_has_is_not_loaded_again(driver):
    run(driver, "first", prompt(200))
    assert run(driver, "again", prompt(200)) == 199
    assert driver.table.num_loaded == 0


def test_a_common_beginning_is_stored_once_and_found_to_the_token(driver, store):
    system = prompt(150)
    run(driver, "one", system + prompt(40, 1))
    before = len(store._host)
    run(driver, "two", system + prompt(40, 2))
    assert before == 4 and len(store._host) - before == 2  # only the third and fourth block differ
    driver.reload()
    assert run(driver, "three", system + prompt(40, 5)) == 150


def test_chats_that_do_not_fit_on_the_device_together_change_places(driver):
    chats = [prompt(200, seed) for seed in range(8)]  # 13 pages each, and 40 are there
    for index, tokens in enumerate(chats):
        run(driver, f"first {index}", tokens)
    for index, tokens in enumerate(chats):
        assert run(driver, f"second {index}", tokens) == 199


def test_a_growing_tail_takes_the_place_of_the_shorter_one(driver, store):
    tokens = prompt(70)
    for turn in range(4):
        run(driver, f"turn {turn}", tokens)
        tokens = [*tokens, *continuation(tokens, 5, next_token), 1]
    assert len(store._host) == 2  # one whole block and one tail


@pytest.mark.parametrize("options", [{"use_cache": False}, {"prompt_logprobs": 1}])
def test_who_wants_no_cache_gets_nothing_restored(driver, options):
    run(driver, "first", prompt(100))
    driver.reload()
    assert run(driver, "second", prompt(100), **options) == 0
    assert driver.table.num_loaded == 0


def test_who_wants_no_trace_leaves_none(driver, store):
    run(driver, "first", prompt(100), use_cache=False)
    assert len(store._host) == 0


def test_pages_that_wait_to_be_saved_are_given_up_to_those_who_need_them(make_driver, store):
    driver = make_driver(small_limits(num_pages=8, context_length=128), store=store, next_token=next_token, delay=4)
    for index in range(12):
        driver.add(str(index), prompt(90, index), max_tokens=4)
    driver.run()
    for index in range(12):
        assert driver.tokens(str(index)) == continuation(prompt(90, index), 4, next_token)


def test_several_answers_come_from_one_restored_prompt(driver):
    run(driver, "first", prompt(100))
    driver.reload()
    driver.add("n", prompt(100), n=3, max_tokens=4)
    driver.run()
    assert driver.cached("n") == 99
    for index in range(3):
        assert driver.tokens("n", index) == continuation(prompt(100), 4, next_token)


def test_an_abort_while_blocks_are_on_their_way(driver):
    run(driver, "first", prompt(300))
    driver.reload()
    driver.add("gone", prompt(300), max_tokens=4)
    driver.step()
    driver.abort("gone")
    driver.run()
    assert driver.reason("gone") == "abort"
    assert run(driver, "stays", prompt(300)) == 299


@pytest.mark.parametrize("call", ["save_pages", "load_pages", "end_forward", "retire"])
def test_a_move_that_fails_costs_a_computation_and_no_answer(driver, call):
    run(driver, "first", prompt(200))
    if call in ("load_pages", "end_forward", "retire"):
        driver.reload()
    driver.table.faults.append(Fault(call, driver.table.last_submitted + 1, RuntimeError("moved badly")))
    run(driver, "second", prompt(200) if call != "save_pages" else prompt(200, 9))
    driver.reload()
    assert run(driver, "third", prompt(200)) == 199


def test_a_block_that_is_gone_or_bad_is_computed(driver, store):
    tokens = prompt(200)
    run(driver, "first", tokens)
    keys = [key for _, key, _ in chain(store.root, tokens)]
    driver.reload()
    store._host.remove([keys[1]])
    assert run(driver, "second", tokens) == 64


def test_running_streams_go_on_while_pages_are_loaded(driver):
    run(driver, "kept", prompt(300))
    driver.reload()
    driver.add("stream", prompt(3), max_tokens=40)
    for _ in range(4):
        driver.step()
    driver.add("comes back", prompt(300), max_tokens=3)
    before = len(driver.tokens("stream"))
    while driver.table.num_loaded < 19:
        driver.step()
    assert len(driver.tokens("stream")) - before >= 4  # 5 loads, and a token beside nearly each of them
    driver.run()
    assert driver.cached("comes back") == 299

"""n answers to one prompt: forked from its pages, each with its own end, counted together."""

from collections import Counter

import pytest

from engine.engine import Engine
from engine.errors import DeviceFailed
from engine.fake_table import Fault, continuation, small_limits
from engine.function_table import FROM_DEVICE
from engine.request import SamplingParams


def drawn_tokens(state: int, last: int) -> int:
    return state % 256


@pytest.mark.parametrize("delay", [1, 4])
@pytest.mark.parametrize("prompt_len", [1, 15, 16, 17, 33])
@pytest.mark.parametrize("use_cache", [True, False])
def test_n_answers_share_the_prompt_and_copy_the_page_they_write(make_driver, delay, prompt_len, use_cache):
    driver = make_driver(delay=delay)
    prompt = list(range(prompt_len))
    driver.add("a", prompt, n=7, max_tokens=20, use_cache=use_cache)
    driver.run()
    for index in range(7):
        assert driver.tokens("a", index) == continuation(prompt, 20, drawn_tokens)
        assert driver.reason("a", index) == "length"
    usage = driver.last().usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (prompt_len, 140, 0)
    assert driver.table.num_rows == prompt_len + 6 + 7 * 19
    assert driver.table.num_copied == (6 if (prompt_len - 1) % 16 else 0)


def test_only_the_last_delta_has_usage_and_each_answer_ends_once(make_driver):
    driver = make_driver(delay=2)
    driver.add("a", range(5), n=3, max_tokens=4)
    driver.run()
    deltas = driver.deltas["a"]
    assert Counter(delta.index for delta in deltas if delta.finish_reason) == Counter(range(3))
    assert [delta.usage is not None for delta in deltas] == [False] * (len(deltas) - 1) + [True]


def test_answer_i_draws_with_seed_plus_i(make_driver, monkeypatch):
    driver = make_driver()
    seeds = Counter()
    sample = driver.table.sample

    def noted(samples):
        seeds.update(each.params.seed for each in samples)
        sample(samples)

    monkeypatch.setattr(driver.table, "sample", noted)
    driver.add("a", range(5), n=3, max_tokens=4, sampling=SamplingParams(seed=2**64 - 1))
    driver.run()
    assert seeds == {2**64 - 1: 4, 0: 4, 1: 4}


@pytest.mark.parametrize("max_slots", [1, 2])
def test_answers_that_find_no_slot_start_later_from_the_cached_prompt(make_driver, max_slots):
    driver = make_driver(small_limits(max_slots=max_slots), delay=3)
    driver.add("a", range(40), n=5, max_tokens=6)
    driver.run()
    assert all(driver.tokens("a", index) == continuation(range(40), 6, drawn_tokens) for index in range(5))
    assert driver.table.num_rows == 40 + 4 + 5 * 5


def test_answers_are_reused_in_the_next_turn(make_driver):
    driver = make_driver(next_token=lambda state, last: (state + last) % 256)
    driver.add("a", range(20), n=3, max_tokens=9)
    driver.run()
    driver.add("b", [*range(20), *driver.tokens("a", 2), 1], max_tokens=1)
    driver.run()
    assert driver.cached("b") == 28


def test_abort_ends_all_answers(make_driver):
    driver = make_driver(small_limits(max_slots=2), delay=3)
    driver.add("a", range(20), n=4, max_tokens=50)
    for _ in range(12):
        driver.step()
    driver.abort("a")
    assert [driver.reason("a", index) for index in range(4)] == ["abort"] * 4
    assert driver.last().usage.completion_tokens == sum(len(driver.tokens("a", index)) for index in range(4))
    driver.run()


def test_an_error_ends_the_whole_request_with_one_word(make_driver):
    driver = make_driver(faults=[Fault("decode", 4, RuntimeError("boom"))])
    driver.add("a", range(20), n=3, max_tokens=50)
    driver.run()
    assert [delta.finish_reason for delta in driver.deltas["a"] if delta.finish_reason] == ["error"]
    assert driver.last().usage is not None


def test_a_forked_answer_sends_its_first_token_itself(make_driver, monkeypatch):
    """The device's last token is that of the slot, and a fork has another slot than its root."""
    driver = make_driver()
    first_rows = {}
    embed = driver.table.embed

    def noted(rows):
        for row in rows:
            first_rows.setdefault(row.slot, row)
        embed(rows)

    monkeypatch.setattr(driver.table, "embed", noted)
    driver.add("a", range(20), n=3, max_tokens=5)
    driver.run()
    assert len(first_rows) == 3
    assert all(row.token != FROM_DEVICE for row in first_rows.values())


@pytest.mark.parametrize("when", range(1, 20, 3))
def test_open_requests_go_on_in_another_engine(make_driver, when):
    old = make_driver(delay=3)
    old.add("a", range(20), n=2, max_tokens=10, logprobs=1, prompt_logprobs=1)
    old.add("b", range(50), max_tokens=5)
    for _ in range(when):
        old.step()
    new = make_driver(delay=2)
    new.deltas, new._streams, new._num_answers = old.deltas, old._streams, old._num_answers
    new.engine.adopt(old.engine.detach())
    new.run()
    for index in range(2):
        assert new.tokens("a", index) == continuation(range(20), 10, drawn_tokens)
        assert sum(len(delta.logprobs) for delta in new.answer("a", index)) == 10
    assert sum(len(delta.prompt_logprobs) for delta in new.deltas["a"]) == 19
    assert new.tokens("b") == continuation(range(50), 5, drawn_tokens)


def test_what_does_not_fit_another_engine_ends_with_an_error(make_driver):
    old = make_driver()
    old.add("a", range(50), max_tokens=50)
    engine = Engine(make_driver(small_limits(context_length=60)).table, old.vocabulary)
    engine.adopt(old.engine.detach())
    [emission] = engine.take_outbox()
    assert "does not fit" in emission.error
    assert not engine.has_work


def test_a_lost_device_leaves_the_ledger_in_order(make_driver):
    old = make_driver(faults=[Fault("end_forward", 5, DeviceFailed("gone"))])
    old.add("a", range(50), max_tokens=20)
    with pytest.raises(DeviceFailed):
        old.run()
    new = make_driver()
    new.deltas, new._streams, new._num_answers = old.deltas, old._streams, old._num_answers
    for emission in old.engine.take_outbox():
        old._streams["a"].deliver(emission)
    new.engine.adopt(old.engine.detach())
    new.run()
    assert new.tokens("a") == continuation(range(50), 20, drawn_tokens)

"""What went wrong in serving engines before, each by its symptom, and the plain runs that any of them must master."""

import random
from itertools import pairwise

import pytest

from engine.errors import ContextTooLong
from engine.fake_table import Fault, continuation, small_limits

END = 299


def drawn_tokens(state: int, last: int) -> int:
    return state % 256


def steps_until_the_end(driver) -> dict[str, int]:
    """Name -> the step in which its end was told, the first step being number 1."""
    ends: dict[str, int] = {}
    step = 0
    while driver.engine.has_work:
        step += 1
        driver.step()
        for name in driver.deltas:
            if driver.reason(name) and name not in ends:
                ends[name] = step
    return ends


def test_continuous_batching_ends_each_request_max_tokens_steps_later(make_driver):
    driver = make_driver(small_limits(max_in_flight=1, max_rows=64))
    for n in range(8):
        driver.add(str(n), [n] * 4, max_tokens=10 + n)
    assert steps_until_the_end(driver) == {str(n): 10 + n + 1 for n in range(8)}


def test_hybrid_prefill_costs_those_who_stream_no_step(make_driver):
    driver = make_driver(small_limits(max_in_flight=1))
    ends: dict[str, int] = {}
    for step in range(60):
        if step < 8:
            driver.add(str(step), [step] * 8, max_tokens=20)
        driver.step()
        for name in driver.deltas:
            if driver.reason(name):
                ends.setdefault(name, step)
    assert ends == {str(n): n + 20 for n in range(8)}


def test_random_arrivals_all_finish(make_driver):
    chance = random.Random(7)
    driver = make_driver(small_limits(num_pages=24), delay=3)
    asked = {}
    for n in range(40):
        asked[str(n)] = [chance.randrange(250) for _ in range(chance.randrange(1, 90))], chance.randrange(1, 60)
        driver.add(str(n), asked[str(n)][0], max_tokens=asked[str(n)][1])
        for _ in range(chance.randrange(8)):
            driver.step()
    driver.run(20_000)
    for name, (prompt, count) in asked.items():
        assert driver.tokens(name) == continuation(prompt, count, drawn_tokens)


@pytest.mark.parametrize("num_pages", [16, 17])
def test_near_the_end_of_the_context_it_neither_slows_down_nor_hangs_but_ends_with_length(make_driver, num_pages):
    driver = make_driver(small_limits(num_pages=num_pages), delay=4)  # a context of 256 tokens needs 16 pages
    driver.add("a", range(200))
    driver.add("b", range(50, 250))
    driver.run()
    assert [driver.reason(name) for name in "ab"] == ["length", "length"]
    assert [len(driver.tokens(name)) for name in "ab"] == [56, 56]
    assert driver.table.num_rows < 2 * (256 + 32)


def test_it_does_not_wedge_after_thousands_of_requests(make_driver):
    driver = make_driver(small_limits(num_pages=10), delay=2)
    for n in range(2500):
        driver.add(str(n), [n % 256, n % 7, 3], max_tokens=1 + n % 3)
        if n % 10 == 9:
            driver.run()
            driver.deltas.clear()


def test_a_burst_of_seventy_is_queued_and_not_a_crash(make_driver):
    driver = make_driver(small_limits(num_pages=12, max_slots=4), delay=2)
    for n in range(70):
        driver.add(str(n), [n] * 10, max_tokens=12)
    driver.run()
    assert all(driver.tokens(str(n)) == continuation([n] * 10, 12, drawn_tokens) for n in range(70))


def test_ending_a_sequence_that_others_were_forked_from_leaves_them_alone(make_driver):
    driver = make_driver(delay=4)
    driver.add("first", range(40), max_tokens=50)
    for _ in range(8):
        driver.step()
    for n in range(3):
        driver.add(str(n), [*range(35), n], max_tokens=30)
    for _ in range(3):
        driver.step()
    driver.abort("first")
    driver.engine.state.cache.evict(64, driver.table.last_submitted)
    driver.run()
    for n in range(3):
        assert driver.cached(str(n)) == 35
        assert driver.tokens(str(n)) == continuation([*range(35), n], 30, drawn_tokens)


def test_the_last_reply_is_not_prefilled_again_because_of_its_end_token(make_driver):
    driver = make_driver(next_token=lambda state, last: END if state % 9 == 0 else state % 256)
    chat: list[int] = list(range(40, 60))
    reused = []
    for turn in range(6):
        name = f"turn {turn}"
        driver.add(name, chat, max_tokens=30)
        driver.run()
        reused.append(driver.cached(name))
        told = driver.tokens(name)
        known = len(chat) + len(told) - (driver.reason(name) == "length")
        chat = [*chat, *told, END, 5, 6]
        if turn < 5:
            expected = known
            driver.add(f"probe {turn}", chat, max_tokens=1)
            driver.run()
            assert driver.cached(f"probe {turn}") == expected
    assert reused[0] == 0
    assert all(earlier < later for earlier, later in pairwise(reused))


def test_a_prompt_too_long_is_a_typed_error_and_too_long_an_answer_ends_with_length(make_driver):
    driver = make_driver(small_limits(context_length=64, num_pages=8))
    with pytest.raises(ContextTooLong):
        driver.add("too long", range(64))
    driver.add("a", range(60))
    driver.run()
    assert (driver.reason("a"), len(driver.tokens("a"))) == ("length", 4)


@pytest.mark.parametrize("delay", [1, 4])
def test_an_interrupt_does_not_make_later_answers_empty(make_driver, delay):
    driver = make_driver(delay=delay)
    for n in range(20):
        name = str(n)
        driver.add(name, range(30), max_tokens=20)
        for _ in range(n % 7):
            driver.step()
        driver.abort(name)
    driver.add("last", range(30), max_tokens=20)
    driver.run()
    assert driver.tokens("last") == continuation(range(30), 20, drawn_tokens)
    assert driver.cached("last") == 29


def test_the_same_prompt_again_and_again_gives_the_same_answer(make_driver):
    driver = make_driver(small_limits(num_pages=9), delay=3)
    answers = []
    for n in range(12):
        driver.add(str(n), range(50), max_tokens=40)
        driver.run()
        answers.append(driver.tokens(str(n)))
    assert all(answer == continuation(range(50), 40, drawn_tokens) for answer in answers)


def test_a_token_out_of_range_ends_one_request_and_not_the_engine(make_driver):
    driver = make_driver(next_token=lambda state, last: 300 if last == 7 else 1, delay=3)
    driver.add("bad", [7], max_tokens=5)
    driver.add("good", [8], max_tokens=50)
    driver.run()
    assert (driver.reason("bad"), driver.reason("good")) == ("error", "length")


def test_a_step_that_fails_while_streams_ride_along_costs_only_the_prompts(make_driver):
    driver = make_driver(delay=3)
    driver.add("stream", range(5), max_tokens=60)
    for _ in range(8):
        driver.step()
    driver.add("bad", range(100, 160), max_tokens=5)
    driver.table.faults.append(Fault("prefill", driver.table.last_submitted + 2, RuntimeError("boom")))
    driver.run()
    assert driver.reason("bad") == "error"
    assert driver.tokens("stream") == continuation(range(5), 60, drawn_tokens)


def test_eviction_does_not_keep_the_oldest_and_drop_the_newest(make_driver):
    driver = make_driver(small_limits(num_pages=8))
    for n in range(30):
        driver.add(str(n), [n] * 20, max_tokens=2)
        driver.run()
    driver.add("newest", [29] * 20, max_tokens=1)
    driver.run()
    assert driver.cached("newest") == 19
    driver.add("oldest", [0] * 20, max_tokens=1)
    driver.run()
    assert driver.cached("oldest") == 0

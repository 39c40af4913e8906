"""Short of memory: who gives way, what it costs, and that everybody ends with the right answer all the same."""

import pytest

from engine.actions.commons import MAX_OVERTAKEN
from engine.fake_table import continuation, small_limits
from engine.request import SamplingParams


def drawn_tokens(state: int, last: int) -> int:
    return state % 256


@pytest.mark.parametrize("delay", [1, 2, 3, 4])
@pytest.mark.parametrize("num_pages", [6, 7, 9, 12])
def test_answers_are_right_in_any_shortage(make_driver, delay, num_pages):
    driver = make_driver(small_limits(num_pages=num_pages, max_rows=16), delay=delay)
    for n in range(6):
        driver.add(str(n), [n] * 21, max_tokens=70)
    driver.run(6000)
    for n in range(6):
        assert driver.tokens(str(n)) == continuation([n] * 21, 70, drawn_tokens)
    assert driver.engine.state.num_preempted


@pytest.mark.parametrize("delay", [1, 4])
def test_the_oldest_never_gives_way(make_driver, delay):
    driver = make_driver(small_limits(num_pages=8), delay=delay)
    for n in range(5):
        driver.add(str(n), [n] * 10, max_tokens=100)
    state = driver.engine.state
    held = False
    while driver.reason("0") is None:
        driver.step()
        oldest = state.ledger["0"].answers[0] if "0" in state.ledger else None
        assert not held or oldest is None or oldest.slot >= 0
        held = held or (oldest is not None and oldest.slot >= 0)
    driver.run(6000)
    assert state.num_preempted


def test_who_gives_way_waits_at_its_place_and_goes_on_where_it_was(make_driver):
    driver = make_driver(delay=3)
    for n in range(3):
        driver.add(str(n), [n] * 20, max_tokens=40)
    for _ in range(15):
        driver.step()
    state = driver.engine.state
    told = driver.tokens("1")
    victim = state.ledger["1"].answers[0]
    drawn = victim.num_drawn
    assert drawn > len(victim.committed)
    state.preempt(victim)
    driver.add("3", [3] * 20, max_tokens=40)
    assert state.waiting == [victim, state.ledger["3"].answers[0]]
    rows = driver.table.num_rows
    driver.step()
    assert victim.slot < 0  # its tokens in flight are awaited first
    while victim.slot < 0:
        driver.step()
    assert len(victim.committed) == drawn == len(driver.tokens("1")) > len(told)
    assert driver.table.num_rows - rows < 40  # the cache had most of it
    driver.run()
    for n in range(4):
        assert driver.tokens(str(n)) == continuation([n] * 20, 40, drawn_tokens)


def test_penalties_count_again_what_was_drawn_before(make_driver):
    params = SamplingParams(temperature=0.0, frequency_penalty=0.5)
    driver = make_driver(small_limits(num_pages=6), delay=2)
    for n in range(3):
        driver.add(str(n), [n] * 20, max_tokens=60, sampling=params)  # the table compares the counts
    driver.run()
    assert driver.engine.state.num_preempted
    assert all(driver.reason(str(n)) == "length" for n in range(3))


def test_a_later_small_request_need_not_wait_for_a_big_one(make_driver):
    driver = make_driver(small_limits(num_pages=10, context_length=160), delay=1)
    driver.add("running", range(80), max_tokens=70)
    driver.step()
    driver.add("big", range(100, 240), max_tokens=10)
    driver.add("small", [1, 2, 3], max_tokens=3)
    while driver.reason("small") is None:
        driver.step()
    assert driver.reason("running") is None
    assert driver.engine.state.ledger["big"].answers[0].slot < 0
    driver.run()


def test_the_first_to_wait_is_overtaken_a_few_times_only(make_driver):
    driver = make_driver(small_limits(num_pages=10, context_length=160))
    driver.add("running", range(80), max_tokens=70)
    driver.step()
    driver.add("big", range(100, 240), max_tokens=10)
    for n in range(60):
        driver.add(f"small {n}", [n, 2, 3], max_tokens=3)
    big = driver.engine.state.ledger["big"].answers[0]
    while driver.reason("big") is None:
        driver.step()
        assert big.overtaken <= MAX_OVERTAKEN
    unfinished = [name for name in driver.deltas if driver.reason(name) is None]
    assert len(unfinished) > 30
    driver.run()


def test_hundreds_of_requests_on_a_tiny_pool(make_driver):
    driver = make_driver(small_limits(num_pages=7, max_slots=4), delay=4)
    for n in range(200):
        driver.add(str(n), [n % 50] * (1 + n * 7 % 40), max_tokens=1 + n * 13 % 50)
    driver.run(60_000)
    for n in range(200):
        assert driver.tokens(str(n)) == continuation([n % 50] * (1 + n * 7 % 40), 1 + n * 13 % 50, drawn_tokens)

"""What the engine does not compute again: counts to the token, for chats, twins, forks, aborts and preemptions."""

import pytest

from engine.fake_table import continuation, small_limits

END = 299


def drawn_tokens(state: int, last: int) -> int:
    return state % 256


def computed(driver) -> int:
    """Rows computed since the last call."""
    rows = driver.table.num_rows - getattr(driver, "rows_seen", 0)
    driver.rows_seen = driver.table.num_rows
    return rows


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 32, 33, 100])
@pytest.mark.parametrize("delay", [1, 4])
def test_a_prompt_seen_before_computes_its_last_token_only(make_driver, length, delay):
    driver = make_driver(delay=delay)
    for name in "ab":
        driver.add(name, range(length), max_tokens=4)
        driver.run()
        assert driver.tokens(name) == continuation(range(length), 4, drawn_tokens)
    assert driver.cached("a") == 0
    assert driver.cached("b") == length - 1


@pytest.mark.parametrize("delay", [1, 4])
def test_the_second_turn_of_a_chat_computes_only_what_is_new(make_driver, delay):
    driver = make_driver(
        next_token=lambda state, last: END if last == 77 else 77 if state % 5 == 0 else 50, delay=delay
    )
    prompt = list(range(1, 30))
    driver.add("first", prompt, max_tokens=60)
    driver.run()
    answer = driver.tokens("first")
    assert driver.reason("first") == "stop"
    assert answer[-1] == 77
    computed(driver)
    driver.add("second", [*prompt, *answer, END, 5, 6, 7], max_tokens=1)
    driver.run()
    assert driver.cached("second") == len(prompt) + len(answer)
    assert computed(driver) == 4


def test_each_round_of_a_chat_computes_exactly_what_it_adds(make_driver):
    """By the engine's own count: a question of two tokens, and of the answer before it the token that was never fed."""
    driver = make_driver(delay=3)
    chat = list(range(100, 130))
    for round_ in range(8):
        before = driver.engine.state.metrics.snapshot()["prefill_tokens_sum"]
        name = f"round {round_}"
        driver.add(name, chat, max_tokens=7)
        driver.run()
        computed_now = driver.engine.state.metrics.snapshot()["prefill_tokens_sum"] - before
        assert computed_now == (30 if not round_ else 1 + 2)
        assert driver.cached(name) == len(chat) - computed_now
        chat = [*chat, *driver.tokens(name), 7, 8]


def test_the_second_turn_after_an_answer_that_was_cut_short(make_driver):
    driver = make_driver()
    driver.add("first", range(10), max_tokens=9)
    driver.run()
    driver.add("second", [*range(10), *driver.tokens("first"), 5], max_tokens=1)
    driver.run()
    assert driver.cached("second") == 18  # the last token was drawn and never fed


def test_an_aborted_answer_is_reused(make_driver):
    driver = make_driver(delay=3)
    driver.add("first", range(20), max_tokens=100)
    while len(driver.tokens("first")) < 30:
        driver.step()
    driver.abort("first")
    told = driver.tokens("first")
    driver.add("second", [*range(20), *told, 7], max_tokens=3)
    driver.run()
    assert driver.cached("second") == 20 + len(told) - 1
    assert driver.tokens("second") == continuation([*range(20), *told, 7], 3, drawn_tokens)


def test_a_prompt_that_is_still_being_computed_is_shared(make_driver):
    driver = make_driver(small_limits(max_rows=8))
    prompt = list(range(60))
    driver.add("a", prompt, max_tokens=30)
    for _ in range(5):
        driver.step()
    driver.add("b", [*prompt[:30], 9], max_tokens=5)
    driver.run()
    assert driver.cached("b") == 30
    assert driver.tokens("b") == continuation([*prompt[:30], 9], 5, drawn_tokens)
    assert driver.tokens("a") == continuation(prompt, 30, drawn_tokens)


def test_without_the_cache_nothing_is_read_or_left(make_driver):
    driver = make_driver()
    driver.add("a", range(40), max_tokens=3, use_cache=False)
    driver.run()
    assert driver.engine.state.pages.num_free == driver.engine.state.pages.count
    driver.add("b", range(40), max_tokens=3)
    driver.add("c", range(40), max_tokens=3, use_cache=False)
    driver.run()
    assert driver.cached("b") == driver.cached("c") == 0


def test_a_pinned_prompt_outlives_any_number_of_others(make_driver):
    driver = make_driver(small_limits(num_pages=12))
    system = list(range(100, 150))
    driver.add("system", system, max_tokens=1, pin=True)
    driver.run()
    for n in range(10):
        driver.add(str(n), [n] * 90, max_tokens=2)
        driver.run()
    computed(driver)
    driver.add("chat", [*system, 1, 2, 3], max_tokens=1)
    driver.run()
    assert driver.cached("chat") == 50
    assert computed(driver) == 3
    driver.clear()


def test_pins_never_take_what_an_open_request_needs(make_driver):
    driver = make_driver(small_limits(num_pages=8))
    driver.add("pin", range(60), max_tokens=60, pin=True)
    driver.run()
    assert driver.engine.state.cache.num_pinned == 0
    driver.add("long", range(100, 150), max_tokens=70)
    driver.run()
    assert len(driver.tokens("long")) == 70


def test_the_least_recently_used_prompts_are_the_ones_that_went(make_driver):
    driver = make_driver(small_limits(num_pages=10, max_slots=1))
    for n in range(10):
        driver.add(f"first {n}", [n] * 30, max_tokens=1)
        driver.run()
    for n in reversed(range(10)):
        state = driver.engine.state
        there = state.cache.match([n] * 30, 30).num_tokens == 30
        assert there == (n >= 10 - state.cache.num_pages // 2)
    assert state.cache.num_pages >= 6


def test_a_reset_forgets_prompts(make_driver):
    driver = make_driver()
    driver.add("a", range(40), max_tokens=3, pin=True)
    driver.run()
    driver.clear()
    driver.add("b", range(40), max_tokens=3)
    driver.run()
    assert driver.cached("b") == 0


def test_a_failed_step_leaves_nothing_in_the_cache(make_driver):
    from engine.fake_table import Fault

    driver = make_driver(faults=[Fault("retire", 1, RuntimeError("boom"))])
    driver.add("a", range(20), max_tokens=5)
    driver.run()
    assert driver.reason("a") == "error"
    assert driver.engine.state.cache.num_pages == 0


def test_a_full_cache_makes_room_while_answers_grow(make_driver):
    driver = make_driver(small_limits(num_pages=16), delay=4)
    for n in range(12):
        driver.add(f"a{n}", [n] * 20, max_tokens=40)
        driver.add(f"b{n}", [n] * 20, max_tokens=50)
        driver.run()
        assert driver.tokens(f"b{n}") == continuation([n] * 20, 50, drawn_tokens)
    assert not driver.engine.state.num_preempted

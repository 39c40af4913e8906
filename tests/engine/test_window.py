"""A window with sinks in the core: sequences far longer than all memory, by the same tokens as without a window."""

import pytest

from engine.fake_table import FakeTable, continuation, fold, pretend_logprobs, small_limits
from engine.function_table import PAGE_SIZE, Row
from engine.window import NO_PAGE, Window, held

REACHES = [(16, 0), (17, 1), (18, 16), (32, 4), (50, 17)]
LONG = [n * 7 % 250 for n in range(1000)]


def next_token(state: int, last: int) -> int:
    return state % 256


def reached(position, window, sinks):
    return {t for t in range(position + 1) if t < sinks or t > position - window}


@pytest.mark.parametrize("reach", REACHES)
def test_a_page_is_needed_while_a_later_row_reaches_into_it(reach):
    window, sinks = reach
    pages = Window(small_limits(window=window, sinks=sinks))
    most = pages.most_pages(1000)
    for position in range(300):
        own = {t // PAGE_SIZE for t in reached(position, window, sinks)}
        needed = {index for index in range(position // PAGE_SIZE + 1) if pages.needs(index, position)}
        assert own <= needed <= own | set(range(-(-sinks // PAGE_SIZE)))
        assert needed <= {index for index in range(30) if pages.needs(index, position - 1)} | {position // PAGE_SIZE}
        assert len(needed) <= most == pages.most_pages(most)
    assert len(needed) <= most <= len(needed) + 1, "asks for more than is ever needed"


def test_without_a_window_everything_is_needed():
    pages = Window(small_limits())
    assert not pages.is_on
    assert all(pages.needs(index, 10_000) for index in range(600))
    assert pages.most_pages(600) == pages.end_page(500, 600) == 600
    assert not pages.leaving([1, 2, 3], 10_000)


@pytest.mark.parametrize("delay", [1, 4])
@pytest.mark.parametrize("max_rows", [1, 7, 32, 128])
@pytest.mark.parametrize("reach", REACHES)
def test_prompt_and_answer_far_longer_than_all_memory(make_driver, reach, max_rows, delay):
    window, sinks = reach
    most = Window(small_limits(window=window, sinks=sinks)).most_pages(1000)
    limits = small_limits(context_length=2000, num_pages=most, max_rows=max_rows, window=window, sinks=sinks)
    driver = make_driver(limits, delay=delay, next_token=next_token)
    driver.add("a", LONG, max_tokens=300)
    driver.run(6000)
    assert driver.tokens() == continuation(LONG, 300, next_token)
    assert driver.engine.state.num_preempted == 0


def test_one_page_less_than_it_needs_at_once_bounds_the_length(make_driver):
    driver = make_driver(small_limits(context_length=2000, num_pages=4, window=50, sinks=4), next_token=next_token)
    assert driver.engine.state.max_tokens_in_pool == 4 * PAGE_SIZE + 1
    driver = make_driver(small_limits(context_length=2000, num_pages=6, window=50, sinks=4), next_token=next_token)
    assert driver.engine.state.max_tokens_in_pool >= 2000


def test_a_chunk_is_as_large_as_memory_allows(make_driver):
    limits = small_limits(context_length=2000, num_pages=40, max_rows=128, window=32, sinks=4)
    driver = make_driver(limits, next_token=next_token)
    driver.add("a", LONG, max_tokens=1)
    while driver.engine.has_work:
        driver.engine.step()  # the driver's own clock would make every chunk look slow
    assert driver.table.last_submitted <= 12


def test_several_share_memory_that_holds_none_of_them_whole(make_driver):
    limits = small_limits(context_length=600, num_pages=12, max_rows=48, window=40, sinks=4)
    driver = make_driver(limits, delay=3, next_token=next_token)
    prompts = {str(n): LONG[n * 13 : n * 13 + 300] for n in range(6)}
    for name, prompt in prompts.items():
        driver.add(name, prompt, max_tokens=100)
    driver.run(6000)
    for name, prompt in prompts.items():
        assert driver.tokens(name) == continuation(prompt, 100, next_token)


@pytest.mark.parametrize("use_cache", [True, False])
def test_whoever_gave_way_is_computed_again_in_as_little_memory(make_driver, use_cache):
    limits = small_limits(context_length=900, num_pages=8, max_rows=32, window=32, sinks=4)
    driver = make_driver(limits, delay=2, next_token=next_token)
    driver.add("a", LONG[:400], max_tokens=200, use_cache=use_cache)
    for turn in range(60):
        for _ in range(5):
            driver.step()
        state = driver.engine.state
        holders = [*state.prefilling, *state.running]
        if turn % 15 == 14 and holders:
            state.preempt(holders[0])
            state.check_integrity()
    driver.run(6000)
    assert driver.tokens() == continuation(LONG[:400], 200, next_token)
    assert driver.engine.state.num_preempted >= 3


def test_the_table_is_told_of_real_pages_only(make_driver):
    limits = small_limits(context_length=600, num_pages=30, max_rows=32, window=32, sinks=4)
    driver = make_driver(limits, next_token=next_token)
    told = []
    set_pages = driver.table.set_pages
    driver.table.set_pages = lambda slot, first, pages: (
        told.append((first, list(pages))),
        set_pages(slot, first, pages),
    )
    driver.add("a", LONG[:200], max_tokens=20)
    driver.run()
    told.clear()
    driver.add("b", [*LONG[:200], 5], max_tokens=20)
    driver.run()
    assert driver.cached("b") >= 192
    assert all(page >= 0 for _, pages in told for page in pages)
    (first, sinks), (window_first, window) = told[:2]
    assert (first, len(sinks)) == (0, 1), "only the sinks' page and the window's are shared"
    assert window_first == (200 + 1 - 32) // PAGE_SIZE and len(window) <= 4


@pytest.mark.parametrize("delay", [1, 3])
def test_answers_share_what_is_there_and_compute_what_is_not(make_driver, delay):
    limits = small_limits(context_length=600, num_pages=24, max_rows=32, max_slots=2, window=32, sinks=4)
    driver = make_driver(limits, delay=delay, next_token=next_token)
    driver.add("a", LONG[:210], n=4, max_tokens=90)  # two slots: the later ones start when the root is far ahead
    driver.run(6000)
    for index in range(4):
        assert driver.tokens("a", index) == continuation(LONG[:210], 90, next_token)


def test_logprobs_of_prompt_and_answer_are_complete(make_driver):
    limits = small_limits(context_length=600, num_pages=6, max_rows=32, window=32, sinks=4)
    driver = make_driver(limits, delay=3, next_token=next_token)
    driver.add("a", LONG[:150], max_tokens=80, logprobs=1, prompt_logprobs=2)
    driver.run(6000)

    def expected(before, tokens, num_top):
        state = 0
        for token in before:
            state = fold(state, token)
        for token in tokens:
            yield pretend_logprobs(state, token, num_top)
            state = fold(state, token)

    logprobs = [entry for delta in driver.deltas["a"] for entry in delta.logprobs]
    assert logprobs == list(expected(LONG[:150], driver.tokens(), 1))
    assert list(driver.deltas["a"][0].prompt_logprobs) == list(expected(LONG[:1], LONG[1:150], 2))


def test_a_pinned_prompt_stays_and_the_next_starts_behind_it(make_driver):
    limits = small_limits(context_length=600, num_pages=20, max_rows=32, window=32, sinks=4)
    driver = make_driver(limits, next_token=next_token)
    driver.add("a", LONG[:100], max_tokens=4, pin=True)
    driver.run()
    assert driver.engine.state.cache.num_pinned == 7
    driver.add("b", LONG[100:500], max_tokens=100)
    driver.run()
    driver.add("c", [*LONG[:100], 3], max_tokens=50)
    driver.run()
    assert driver.cached("c") == 100
    assert driver.tokens("c") == continuation([*LONG[:100], 3], 50, next_token)


def test_memory_is_only_held_while_the_window_reaches_it(make_driver):
    limits = small_limits(context_length=900, num_pages=50, max_rows=32, window=32, sinks=4)
    driver = make_driver(limits, next_token=next_token)
    driver.add("a", LONG[:500], max_tokens=100)
    for _ in range(60):
        driver.step()
    [sequence] = driver.engine.state.running
    assert len(sequence.pages) > 30 and len(held(sequence.pages)) <= 4
    assert sequence.pages[0] != NO_PAGE and sequence.pages[1] == NO_PAGE


def windowed_table(**options):
    return FakeTable(small_limits(num_pages=8, max_rows=64, window=32, sinks=4), **options)


def run_rows(table, slot, positions):
    table.begin_forward()
    table.embed([Row(position % 250, position, slot) for position in positions])
    table.prefill()
    table.end_forward()
    table.retire(wait=True)


def test_a_table_refuses_a_row_whose_pages_were_given_away():
    table = windowed_table()
    table.set_pages(0, 0, range(4))
    run_rows(table, 0, range(60))
    table.set_pages(1, 0, [1])  # tokens 16 to 31: the row at position 60 reaches 29
    run_rows(table, 1, [0])
    with pytest.raises(ValueError, match="overwritten by another"):
        run_rows(table, 0, [60])


def test_a_table_lets_pages_go_that_no_row_reaches():
    table = windowed_table()
    table.set_pages(0, 0, range(4))
    run_rows(table, 0, range(63))
    table.set_pages(1, 0, [1])
    run_rows(table, 1, range(16))
    table.set_pages(0, 4, [4])
    run_rows(table, 0, [63, 64])


def test_a_table_refuses_a_hole_within_reach():
    table = windowed_table()
    table.set_pages(0, 0, range(4))
    run_rows(table, 0, range(63))
    table.set_pages(1, 0, [0])
    table.set_pages(1, 2, [2, 3])
    with pytest.raises(ValueError, match="no page for position"):
        run_rows(table, 1, [60])
    table.set_pages(2, 0, [0])
    table.set_pages(2, 2, [2, 3])
    run_rows(table, 2, [63])


def test_a_page_in_two_places_is_refused():
    table = windowed_table()
    table.set_pages(0, 0, [0, 1])
    with pytest.raises(ValueError, match="in two places"):
        table.set_pages(0, 2, [1])

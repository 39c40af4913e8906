"""Chunks that leave room for those who stream: the rule, and the gaps it leaves in the engine."""

import pytest

from engine.fake_table import FakeTable, continuation, small_limits
from engine.pacing import MAX_STEP_S, Pacer


def drawn_tokens(state: int, last: int) -> int:
    return state % 256


def test_before_anything_was_measured_a_chunk_is_modest():
    assert Pacer(128).rows(0) == 32
    assert Pacer(20).rows(0) == 20


@pytest.mark.parametrize(("row_s", "rows"), [(0.0001, 128), (0.01, 40), (0.02, 16), (0.1, 8), (0.0, 128)])
def test_a_step_stays_under_the_limit(row_s, rows):
    pacer = Pacer(128)
    pacer.note(seconds=row_s * 64, num_rows=64, depth=64)
    assert pacer.rows(64) == rows
    assert rows * row_s <= MAX_STEP_S or rows == 8


def test_what_decoding_costs_anyway_is_not_blamed_on_the_rows():
    pacer = Pacer(128)
    for _ in range(5):
        pacer.note(seconds=0.1, num_rows=0, depth=0)
    pacer.note(seconds=0.1 + 0.01 * 32, num_rows=32, depth=32)
    assert pacer.rows(0) == 24


def test_the_pace_follows_the_depth_and_the_latest_steps():
    pacer = Pacer(128)
    pacer.note(seconds=1.28, num_rows=128, depth=100)
    pacer.note(seconds=6.4, num_rows=128, depth=5000)
    assert pacer.rows(100) == 40
    assert pacer.rows(4000) == 8
    for _ in range(20):
        pacer.note(seconds=0.128, num_rows=128, depth=5000)
    assert pacer.rows(5000) > 100


class Clock:
    """Seconds that pass only while the device works: each step takes a base time, and more per row and depth."""

    def __init__(self, table: FakeTable) -> None:
        self.now = 0.0
        self.chunks: list[int] = []
        end_forward = table.end_forward

        def timed() -> int:
            rows = table._recording.rows
            self.chunks.append(len(rows))
            self.now += 0.02 + sum(0.004 + 0.00001 * row.position for row in rows)
            return end_forward()

        table.end_forward = timed


def test_while_a_long_prompt_is_computed_another_stream_gets_a_token_per_chunk(make_driver):
    limits = small_limits(max_rows=128, context_length=3000, num_pages=256, max_in_flight=1)
    driver = make_driver(limits)
    clock = Clock(driver.table)
    driver.engine.state.clock = lambda: clock.now
    driver.add("stream", [1], max_tokens=400)
    while not driver.tokens("stream"):
        driver.step()
    driver.add("long", [n % 250 for n in range(2000)], max_tokens=1)
    gaps, last = [], clock.now
    while driver.reason("long") is None:
        before = len(driver.tokens("stream"))
        driver.step()
        if len(driver.tokens("stream")) > before:
            gaps.append(clock.now - last)
            last = clock.now
    assert max(gaps) < MAX_STEP_S
    assert sum(gaps) / len(gaps) > 0.3
    assert driver.tokens("stream") == continuation([1], 400, drawn_tokens)[: len(driver.tokens("stream"))]


def test_with_nobody_else_running_a_chunk_is_as_large_as_possible(make_driver):
    driver = make_driver(small_limits(max_rows=128, context_length=3000, num_pages=256))
    clock = Clock(driver.table)
    driver.engine.state.clock = lambda: clock.now
    driver.add("long", [n % 250 for n in range(1280)], max_tokens=1)
    driver.run()
    assert clock.chunks == [128] * 10


def test_a_short_prompt_does_not_wait_for_a_long_one(make_driver):
    driver = make_driver(small_limits(max_rows=32, context_length=2000, num_pages=200))
    driver.add("long", [n % 250 for n in range(1500)], max_tokens=1)
    driver.add("short", [1, 2, 3], max_tokens=2)
    for _ in range(6):
        driver.step()
    assert driver.reason("short") == "length"
    driver.run()


@pytest.mark.parametrize("max_rows", [1, 2, 3])
def test_with_hardly_any_rows_prompts_and_streams_take_turns(make_driver, max_rows):
    driver = make_driver(small_limits(max_rows=max_rows))
    driver.add("a", [1], max_tokens=30)
    driver.step()
    driver.add("b", range(40), max_tokens=30)
    driver.run()
    assert driver.table.last_submitted <= 2 * (30 + 40 + 30)
    assert driver.tokens("b") == continuation(range(40), 30, drawn_tokens)

"""Chunks that leave room for those who stream: the rule, and the gaps it leaves in the engine."""

from collections import deque

import pytest

from engine.fake_table import continuation, small_limits
from engine.pacing import MAX_STEP_ALONE_S, MAX_STEP_S, Pacer


def drawn_tokens(state: int, last: int) -> int:
    return state % 256


def test_before_anything_was_measured_a_chunk_is_modest():
    assert Pacer(128).rows(0) == 32
    assert Pacer(20).rows(0) == 20


@pytest.mark.parametrize(("row_s", "rows"), [(0.0001, 128), (0.01, 40), (0.02, 16), (0.1, 8), (0.0, 128)])
def test_a_step_stays_under_the_limit(row_s, rows):
    pacer = Pacer(128)
    pacer.note(seconds=row_s * 64, num_rows=64, num_decode=0, end=64)
    assert pacer.rows(0) == rows
    assert rows * row_s <= MAX_STEP_S or rows == 8


def test_what_decoding_costs_anyway_is_not_blamed_on_the_rows():
    pacer = Pacer(128)
    for _ in range(5):
        pacer.note(seconds=0.1, num_rows=0, num_decode=1, end=0)
    pacer.note(seconds=0.1 + 0.01 * 32, num_rows=32, num_decode=1, end=32)
    assert pacer.rows(0) == 24
    assert pacer.rows(0, taking_turns=True) == 16


def test_a_short_prompt_by_itself_does_not_make_rows_look_free():
    """Beside eight streams, a step takes as long as this prompt's did."""
    pacer = Pacer(128)
    pacer.note(seconds=0.02 * 32, num_rows=32, num_decode=0, end=32)
    pacer.note(seconds=0.16, num_rows=0, num_decode=8, end=0)
    for _ in range(5):
        pacer.note(seconds=0.14, num_rows=7, num_decode=0, end=7)
    assert pacer.rows(0) == 8


def test_the_pace_follows_the_depth_and_the_latest_steps():
    pacer = Pacer(128)
    pacer.note(seconds=1.28, num_rows=128, num_decode=0, end=100)
    pacer.note(seconds=6.4, num_rows=128, num_decode=0, end=5000)
    assert pacer.rows(50) == 32
    assert pacer.rows(4000) == 8
    for _ in range(20):
        pacer.note(seconds=0.128, num_rows=128, num_decode=0, end=5000)
    assert pacer.rows(4900) > 100


def test_a_depth_that_was_not_measured_yet_is_taken_to_cost_more():
    pacer = Pacer(128)
    pacer.note(seconds=0.32, num_rows=64, num_decode=0, end=160)
    assert pacer.rows(128) == 64
    assert pacer.rows(800) == 16
    pacer.note(seconds=0.32, num_rows=64, num_decode=0, end=864)
    assert pacer.rows(800) == 72


class Device:
    """Works on one step after another; seconds pass while it is waited for and at no other time. A step takes `base_s`,
    and for each row `row_s` and more by depth.
    """

    def __init__(self, driver, *, base_s: float = 0.02, row_s: float = 0.004, depth_s: float = 0.00001) -> None:
        self.now = 0.0
        self.steps: list[int] = []
        """Rows of each."""
        self.seconds: list[float] = []
        self._costs = base_s, row_s, depth_s
        self._table, self._done_at = driver.table, deque[float]()
        self._end_forward, self._retire = driver.table.end_forward, driver.table.retire
        driver.table.end_forward, driver.table.retire = self._submit, self._take_back
        driver.engine.state.clock = lambda: self.now

    def _submit(self) -> int:
        rows = self._table._recording.rows
        base_s, row_s, depth_s = self._costs
        started = max([self.now, *self._done_at])
        self.seconds.append(base_s + sum(row_s + depth_s * row.position for row in rows))
        self._done_at.append(started + self.seconds[-1])
        self.steps.append(len(rows))
        return self._end_forward()

    def _take_back(self, *, wait: bool):
        if not self._done_at or (not wait and self._done_at[0] > self.now):
            return None
        self.now = max(self.now, self._done_at.popleft())
        return self._retire(wait=True)


class Gaps:
    """What each stream waits for between two of its tokens: seconds, and steps of either kind."""

    def __init__(self, driver, device: Device) -> None:
        self.seconds: list[float] = []
        self.steps: list[tuple[int, int]] = []
        """(steps with a chunk of a prompt, steps that only decode), the one that brings the token included."""
        self._device, self._state = device, driver.engine.state
        self._last: dict[str, tuple[float, int, int]] = {}
        self._chunks = self._decodes = 0
        retired = self._state.retired
        self._state.retired = lambda number: self._note(retired(number))

    def _note(self, step):
        self._chunks += bool(step.chunks)
        self._decodes += not step.chunks
        for sequence in step.drawing:
            name = sequence.request.request_id
            now = self._device.now, self._chunks, self._decodes
            if name in self._last:
                before = self._last[name]
                self.seconds.append(now[0] - before[0])
                self.steps.append((now[1] - before[1], now[2] - before[2]))
            self._last[name] = now
        return step


@pytest.mark.parametrize("num_streams", [1, 6, 12])  # a step draws 8 tokens at most: twelve take turns
@pytest.mark.parametrize("max_in_flight", [1, 2, 4])
@pytest.mark.parametrize(
    "costs",
    [
        {},
        {"base_s": 0.005, "row_s": 0.0004, "depth_s": 0.000003},  # attention soon costs more than all else
        {"base_s": 0.12, "row_s": 0.002, "depth_s": 0.0},  # reading the weights costs most
        {"base_s": 0.001, "row_s": 0.00001, "depth_s": 0.0},
    ],
)
def test_while_a_long_prompt_is_computed_no_stream_waits_longer_than_a_chunk_and_a_step(
    make_driver, costs, max_in_flight, num_streams
):
    limits = small_limits(max_rows=128, context_length=3000, num_pages=1000, max_slots=16, max_in_flight=max_in_flight)
    driver = make_driver(limits)
    device = Device(driver, **costs)
    names = [f"stream {n}" for n in range(num_streams)]
    for n, name in enumerate(names):
        driver.add(name, [n, 1, 2], max_tokens=1000)
    while not all(len(driver.tokens(name)) > 2 for name in names):
        driver.step()
    gaps = Gaps(driver, device)
    driver.add("long", [n % 250 for n in range(2000)], max_tokens=1)
    while driver.reason("long") is None:
        driver.step()
    assert max(gaps.seconds) < MAX_STEP_S
    assert max(chunks for chunks, _ in gaps.steps) == 1
    assert max(chunks + decodes for chunks, decodes in gaps.steps) <= 2
    assert max(gaps.seconds) > 0.6 * MAX_STEP_S or max(device.steps) == 128, "the pieces are needlessly small"
    for n, name in enumerate(names):
        told = driver.tokens(name)
        assert told == continuation([n, 1, 2], len(told), drawn_tokens)


def test_with_nobody_else_running_a_chunk_is_as_large_as_possible(make_driver):
    driver = make_driver(small_limits(max_rows=128, context_length=3000, num_pages=256))
    device = Device(driver, row_s=0.0004, depth_s=0.000001)
    driver.add("first", [9] * 32, max_tokens=1)
    driver.run()
    driver.add("long", [n % 250 for n in range(1280)], max_tokens=1)
    driver.run()
    assert device.steps == [32] + [128] * 10


@pytest.mark.parametrize("costs", [{}, {"row_s": 0.02}, {"base_s": 0.3, "row_s": 0.002}])
def test_on_a_slow_device_no_step_looks_like_a_hang(make_driver, costs):
    driver = make_driver(small_limits(max_rows=128, context_length=3000, num_pages=256))
    device = Device(driver, **costs)
    driver.add("long", [n % 250 for n in range(2000)], max_tokens=1)
    driver.run()
    assert 0.6 * MAX_STEP_ALONE_S < max(device.seconds) < MAX_STEP_ALONE_S


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

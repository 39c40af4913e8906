"""Step times from the device: in order, within what the host saw, and no more of them in flight than there is room."""

import time
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest

from shaders.device import Gpu
from shaders.dispatch import Constants
from shaders.kernel import KernelCache
from shaders.recorder import Recorder, command
from shaders.timestamps import StepTimer, _DeviceClock, step_timer
from tests.shaders.harness import giving_back

DEPTH = 3


class Setup:
    def __init__(self, gpu: Gpu, kernels: KernelCache) -> None:
        self.start = np.arange(64, dtype=np.float32)
        self.gpu = gpu
        self.x, self.y = gpu.upload("x", self.start), gpu.upload("y", self.start)
        shape = Constants(gpu).shape(x_stride=16, y_stride=16)
        add = kernels.get("add").bind({"shape": shape, "x": self.x, "y": self.y})
        self.commands = [command(add, (1, 1, 1))] * 8
        self.recorder = Recorder(gpu)
        timer = step_timer(gpu, self.recorder, DEPTH)
        if timer is None:
            pytest.skip("this device has no timestamps")
        self.timer: StepTimer = timer

    def step(self, label: str) -> int:
        stamps = self.timer.next
        index = self.recorder.submit(self.commands, stamps=stamps)
        if stamps is not None:
            self.timer.submitted(stamps, label)
        return index


@pytest.fixture
def setup(gpu: Gpu, kernels: KernelCache) -> Iterator[Setup]:
    with giving_back(gpu):
        made = Setup(gpu, kernels)
        yield made
        gpu.wait()
        made.timer.collect()
        made.timer.release()


def test_a_step_lies_between_its_submit_and_its_retirement(setup: Setup) -> None:
    for number in range(20):
        before = time.perf_counter_ns()
        setup.recorder.wait(setup.step(str(number)))
        [span] = setup.timer.collect()
        assert span.label == str(number)
        assert before <= span.start_ns <= span.end_ns <= time.perf_counter_ns()


def test_steps_in_flight_come_back_in_order_and_the_rest_goes_untimed(setup: Setup) -> None:
    for round_number in range(3):
        indices = [setup.step(f"{round_number}.{step}") for step in range(DEPTH + 2)]
        setup.recorder.wait(indices[-1])
        spans = setup.timer.collect()
        # A software device finishes steps while the next one is submitted, but nobody has collected them until now.
        assert [span.label for span in spans] == [f"{round_number}.{step}" for step in range(DEPTH)]
        for span, following in pairwise(spans):
            assert span.end_ns <= following.start_ns
    assert setup.timer.next is not None


def test_timing_changes_no_results(setup: Setup) -> None:
    setup.recorder.wait(setup.step("timed"))
    found = setup.gpu.read(setup.y).view(np.float32)
    np.testing.assert_array_equal(found, setup.start * 9)


def test_a_device_without_timestamps_has_no_timer(gpu: Gpu) -> None:
    class Plain:
        features = frozenset({"subgroup"})

    assert step_timer(Plain(), Recorder(gpu), 1) is None  # type: ignore[arg-type]  # looked at no further


class TestDeviceClock:
    def place(self, clock: _DeviceClock, begin: int, end: int, seen_ns: int) -> tuple[int, int]:
        clock.saw(end, seen_ns)
        return clock.to_host(begin, end)

    def test_the_least_delay_seen_places_all_later_steps(self) -> None:
        clock = _DeviceClock(1.0)
        assert self.place(clock, 1000, 1100, 50_400) == (50_300, 50_400)
        # The clocks are 49,000 apart; the first step was seen 300 late, this one 10 late.
        assert self.place(clock, 2000, 2100, 51_110) == (51_010, 51_110)
        assert self.place(clock, 3000, 3100, 53_000) == (52_010, 52_110)

    def test_steps_do_not_overlap_when_a_smaller_delay_is_found(self) -> None:
        clock = _DeviceClock(1.0)
        assert self.place(clock, 1000, 2000, 10_000) == (9000, 10_000)
        assert self.place(clock, 2000, 3000, 10_500) == (10_000, 10_500)
        assert self.place(clock, 3000, 4000, 20_000) == (10_500, 11_500)

    def test_ticks_are_not_nanoseconds_everywhere(self) -> None:
        place = self.place(_DeviceClock(52.08), 10**14, 10**14 + 1000, 7_000_000)
        assert place == (7_000_000 - 52_080, 7_000_000)

    def test_a_drifting_clock_is_followed(self) -> None:
        clock = _DeviceClock(1.0)
        second = 1_000_000_000
        for n in range(1, 1000):  # the device's clock loses 50 us a second and every step is seen 20 us late
            seen = n * second + 20_000
            ticks = n * (second - 50_000)
            _, end = self.place(clock, ticks - 1000, ticks, seen)
            assert 0 <= seen - end <= 20_000

    def test_a_counter_that_wraps_starts_afresh(self) -> None:
        clock = _DeviceClock(1.0)
        self.place(clock, 2**36 - 500, 2**36 - 400, 1_000_000)
        assert self.place(clock, 100, 200, 2_000_000) == (1_999_900, 2_000_000)


def test_failed_queries_tell_nothing(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    index = setup.step("failed")
    setup.recorder.wait(index)
    [(stamps, _)] = setup.timer._pending
    take = stamps.mapped.take
    monkeypatch.setattr(stamps.mapped, "take", lambda size: take(size) and bytes(size))
    assert setup.timer.collect() == []
    assert setup.timer.next is not None

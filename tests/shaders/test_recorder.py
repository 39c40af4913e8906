"""The raw recorder against the public way of submitting: same results, steps in flight, writes in their order."""

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from shaders.device import Buffer, Gpu
from shaders.dispatch import Constants
from shaders.kernel import Bound, KernelCache
from shaders.recorder import Command, Copy, MappedBuffer, Recorder, command
from shaders.run import Grid, submit
from tests.shaders.harness import giving_back

N = 64
BYTES = 4 * N
GRID = (1, 1, 1)


class Setup:
    """y += x and y *= silu(gate), over 64 elements."""

    def __init__(self, gpu: Gpu, kernels: KernelCache) -> None:
        self.gpu = gpu
        rng = np.random.default_rng(1)
        self.x, self.gate, self.start = (rng.normal(0, 1, N).astype(np.float32) for _ in range(3))
        self.x_buffer, self.gate_buffer = gpu.upload("x", self.x), gpu.upload("gate", self.gate)
        self.y = gpu.upload("y", self.start)
        shape = Constants(gpu).shape(x_stride=N // 4, y_stride=N // 4)
        self.add = kernels.get("add").bind({"shape": shape, "x": self.x_buffer, "y": self.y})
        self.mul = kernels.get("silu_mul").bind({"shape": shape, "gate": self.gate_buffer, "y": self.y})
        self.recorder = Recorder(gpu)
        self.ring = [MappedBuffer(self.recorder, gpu.readback(f"ring {i}", BYTES)) for i in range(4)]
        gpu.wait()

    def value(self) -> np.ndarray:
        return self.gpu.read(self.y).view(np.float32)

    def reset(self) -> None:
        self.gpu.write(self.y, 0, self.start)

    def step(self, commands: list[Command], target: MappedBuffer) -> int:
        index = self.recorder.submit(commands, after=(Copy(self.y.pointer, target.pointer, BYTES),))
        target.request(BYTES)
        return index

    def take(self, index: int, target: MappedBuffer) -> np.ndarray:
        if not target.answered:
            self.recorder.wait(index)
        assert target.ready
        found = np.frombuffer(target.take(BYTES), np.float32)
        assert not target.answered
        return found


@pytest.fixture
def setup(gpu: Gpu, kernels: KernelCache) -> Iterator[Setup]:
    with giving_back(gpu):
        yield Setup(gpu, kernels)


def recorded(*work: tuple[Bound, Grid]) -> list[Command]:
    return [command(bound, grid) for bound, grid in work]


def test_same_results_as_the_public_way(setup: Setup) -> None:
    work = [(setup.add, GRID), (setup.mul, GRID), (setup.add, GRID), (setup.add, GRID)]
    submit(setup.gpu, work)
    expected = setup.value()
    assert not np.array_equal(expected, setup.start)
    setup.reset()
    index = setup.step(recorded(*work), setup.ring[0])
    assert np.array_equal(setup.take(index, setup.ring[0]), expected)
    assert np.array_equal(setup.value(), expected)


def test_a_pipeline_is_kept_where_none_is_named(setup: Setup) -> None:
    submit(setup.gpu, [(setup.add, GRID)] * 3)
    expected = setup.value()
    setup.reset()
    again = command(setup.add, GRID, same_pipeline=True)
    index = setup.step([*recorded((setup.add, GRID)), again, again], setup.ring[0])
    assert np.array_equal(setup.take(index, setup.ring[0]), expected)


def test_several_steps_in_flight(setup: Setup) -> None:
    """Each step sees the one before it, and brings back what was there then."""
    expected, value = [], setup.start
    for _ in range(12):
        value = value + setup.x
        expected.append(value)
    commands = recorded((setup.add, GRID))
    flying: list[tuple[int, MappedBuffer]] = []
    found = []
    for number in range(12):
        if len(flying) == len(setup.ring):
            found.append(setup.take(*flying.pop(0)))
        target = setup.ring[number % len(setup.ring)]
        flying.append((setup.step(commands, target), target))
    found += [setup.take(*step) for step in flying]
    assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


def test_the_newest_step_may_be_waited_for_first(setup: Setup) -> None:
    commands = recorded((setup.add, GRID))
    steps = [(setup.step(commands, target), target) for target in setup.ring]
    setup.recorder.wait(steps[-1][0])
    assert all(target.ready for target in setup.ring)
    values = [setup.take(*step) for step in reversed(steps)][::-1]
    assert np.array_equal(values[0], setup.start + setup.x)
    assert np.array_equal(values[3], setup.start + setup.x + setup.x + setup.x + setup.x)


def test_writes_belong_to_the_next_submit(setup: Setup) -> None:
    """Host memory may be used again at once: its bytes are copied when the write is queued."""
    commands = recorded((setup.add, GRID))
    source = np.zeros(N, np.float32)
    steps = []
    for number, target in enumerate(setup.ring):
        source[:] = 10.0**number
        setup.recorder.write(setup.x_buffer.pointer, 0, source.ctypes.data, source.nbytes)
        steps.append((setup.step(commands, target), target))
        source[:] = -1e9
    value = setup.start
    for number, step in enumerate(steps):
        value = value + np.float32(10.0**number)
        assert np.array_equal(setup.take(*step), value)


def test_writes_reach_parts_of_a_buffer(setup: Setup) -> None:
    value = np.array([7.0, 8.0], np.float32)
    setup.recorder.write(setup.x_buffer.pointer, 16, value.ctypes.data, value.nbytes)
    setup.x[4:6] = value
    index = setup.step(recorded((setup.add, GRID)), setup.ring[0])
    assert np.array_equal(setup.take(index, setup.ring[0]), setup.start + setup.x)


def test_a_step_without_commands_still_copies(setup: Setup) -> None:
    index = setup.step([], setup.ring[0])
    assert np.array_equal(setup.take(index, setup.ring[0]), setup.start)


def test_several_copies_of_different_sizes(setup: Setup) -> None:
    one, two = setup.ring[:2]
    copies = (Copy(setup.y.pointer, one.pointer, BYTES), Copy(setup.x_buffer.pointer, two.pointer, 8))
    index = setup.recorder.submit(recorded((setup.add, GRID)), after=copies)
    one.request(BYTES)
    two.request(8)
    setup.recorder.wait(index)
    assert np.array_equal(np.frombuffer(one.take(BYTES), np.float32), setup.start + setup.x)
    assert np.array_equal(np.frombuffer(two.take(8), np.float32), setup.x[:2])


def test_both_ways_of_submitting_mix(setup: Setup) -> None:
    expected = setup.start + setup.x + setup.x
    submit(setup.gpu, [(setup.add, GRID)])
    index = setup.step(recorded((setup.add, GRID)), setup.ring[0])
    assert np.array_equal(setup.take(index, setup.ring[0]), expected)


def test_polling_alone_brings_the_answer(setup: Setup) -> None:
    setup.step(recorded((setup.add, GRID)), setup.ring[0])
    for _ in range(10_000):
        if setup.ring[0].answered:
            break
        setup.recorder.poll()
        threading.Event().wait(0.001)
    assert np.array_equal(np.frombuffer(setup.ring[0].take(BYTES), np.float32), setup.start + setup.x)


def test_works_beside_a_busy_thread(setup: Setup) -> None:
    stop = threading.Event()

    def spin() -> None:
        while not stop.is_set():
            sum(range(1000))

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        value = setup.start
        for number in range(20):
            target = setup.ring[number % 4]
            value = value + setup.x
            assert np.array_equal(setup.take(setup.step(recorded((setup.add, GRID)), target), target), value)
    finally:
        stop.set()
        thread.join()
    assert setup.recorder.waited_ns > 0


def test_buffers_are_named_by_their_address(setup: Setup) -> None:
    assert isinstance(setup.y, Buffer) and setup.y.pointer != setup.x_buffer.pointer != 0


def test_copies_before_the_dispatches_at_offsets(setup: Setup) -> None:
    """x[8:12] takes the place of y[0:4], and the sum is made of that."""
    move = Copy(setup.x_buffer.pointer, setup.y.pointer, 16, source_offset=32)
    after = (Copy(setup.y.pointer, setup.ring[0].pointer, BYTES),)
    index = setup.recorder.submit(recorded((setup.add, GRID)), before=(move,), after=after)
    setup.ring[0].request(BYTES)
    expected = setup.start + setup.x
    expected[:4] = setup.x[8:12] + setup.x[:4]
    assert np.array_equal(setup.take(index, setup.ring[0]), expected)

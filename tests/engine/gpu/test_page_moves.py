"""Whole pages out to the host and back: the same logits to the bit, other steps undisturbed, and what is refused.

Bit for bit on a software adapter. Elsewhere a step of another shape may differ by roundings; the moves do not.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from engine.errors import DeviceFailed, ModelNotLoaded, OutOfMemory
from engine.function_table import FROM_DEVICE, MAX_MOVED_PAGES, PAGE_SIZE, RetiredStep, Row, Sample
from engine.gpu_table import GpuTable
from engine.loading import LoadedModel
from engine.request import GREEDY
from models.runner import Runner
from shaders.device import Buffer, Gpu
from shaders.errors import OutOfDeviceMemory
from tests.engine.gpu.conftest import DATA, load_quietly, read_goldens, table_of

TINY = DATA / "gguf_llama" / "tiny-F16.gguf"
SAVED = 4 * PAGE_SIZE
NUM_TOKENS = SAVED + 9
STEPS = 12

Logits = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Subject:
    """A model, tokens for it, and the logits after the last one where nothing was moved."""

    path: Path
    model: LoadedModel
    ids: list[int]
    expected: Logits

    @property
    def table(self) -> GpuTable:
        return table_of(self.model)

    def check(self, found: Logits) -> None:
        if self.model.software_adapter:
            np.testing.assert_array_equal(found, self.expected)
        else:
            np.testing.assert_allclose(found, self.expected, atol=1e-2, rtol=0)


@pytest.fixture(scope="module", params=["starter-f16", "tiny-f32"])
def subject(request: pytest.FixtureRequest, model_of: Callable, starter_path: Path) -> Subject:
    if request.param == "starter-f16":
        path, model = starter_path, model_of(starter_path, kv_type="f16")
        ids = read_goldens()["unicode"].ids[:NUM_TOKENS]
    else:
        path, model = TINY, model_of(TINY)
        golden = json.loads((DATA / "gguf_llama" / "golden.json").read_text())
        ids = golden["files"]["F16"]["sequences"][2]["ids"][:NUM_TOKENS]
    assert len(ids) == NUM_TOKENS
    return Subject(path, model, ids, feed(table_of(model), ids, range(5), cut=SAVED))


def feed(table: GpuTable, ids: Sequence[int], pages: Sequence[int], *, first: int = 0, cut: int = 0) -> Logits:
    """Run positions `first` on, in two steps if cut, on these pages; logits after the last."""
    table.set_pages(0, 0, pages)
    for start, stop in ((first, cut), (max(first, cut), len(ids))):
        if start < stop:
            table.begin_forward()
            table.embed([Row(ids[position], position, 0) for position in range(start, stop)])
            table.prefill()
            table.logits([stop - start - 1])
            table.end_forward()
            table.retire(wait=True)
    return table.read_logits(1)[0]


def submit_save(table: GpuTable, pages: Sequence[int]) -> int:
    table.begin_forward()
    table.save_pages(pages)
    return table.end_forward()


def submit_load(table: GpuTable, pages: Sequence[int], data: bytes) -> int:
    table.begin_forward()
    table.load_pages(pages, data)
    return table.end_forward()


def submit_decode(table: GpuTable, position: int, token: int = FROM_DEVICE) -> int:
    table.begin_forward()
    table.embed([Row(token, position, 0)])
    table.decode()
    table.logits([0])
    table.sample([Sample(0, 0, position + 1, GREEDY)])
    return table.end_forward()


def retired(table: GpuTable) -> RetiredStep:
    step = table.retire(wait=True)
    assert step is not None
    return step


def save(table: GpuTable, pages: Sequence[int]) -> bytes:
    number = submit_save(table, pages)
    step = retired(table)
    assert (step.step, step.tokens, step.logprobs) == (number, (), ())
    return step.pages


def load(table: GpuTable, pages: Sequence[int], data: bytes) -> None:
    number = submit_load(table, pages, data)
    assert retired(table) == RetiredStep(number, ())


def noise(table: GpuTable, num_pages: int, seed: int) -> bytes:
    return np.random.default_rng(seed).bytes(num_pages * table.limits.page_bytes)


def test_a_sequence_goes_on_upon_other_pages(subject: Subject) -> None:
    table = subject.table
    feed(table, subject.ids, range(5))
    data = save(table, [0, 1, 2, 3])
    others = [17, 8, 23, 11]
    load(table, [0, 1, 2, 3], noise(table, 4, seed=1))
    load(table, others, data)
    assert table.dispatches_last_step < 8
    subject.check(feed(table, subject.ids, [*others, 20], first=SAVED))
    # In twos, in another order, from where they are now.
    load(table, [3, 1], save(table, [23, 8]))
    load(table, [2, 0], save(table, [11, 17]))
    subject.check(feed(table, subject.ids, [0, 1, 3, 2, 6], first=SAVED))


def test_a_sequence_goes_on_in_a_fresh_table(subject: Subject) -> None:
    feed(subject.table, subject.ids, range(5))
    data = save(subject.table, [0, 1, 2, 3])
    kv_type = subject.table._runner._kv.kv_type
    fresh = load_quietly(subject.path, kv_type=kv_type)
    try:
        load(table_of(fresh), [5, 6, 7, 9], data)
        subject.check(feed(table_of(fresh), subject.ids, [5, 6, 7, 9, 2], first=SAVED))
        assert save(table_of(fresh), [5, 6, 7, 9]) == data
    finally:
        fresh.table.close()


def test_order_of_the_bytes(subject: Subject) -> None:
    """Page after page: the keys of each layer, then the values of each. Whoever changes this changes a version."""
    table = subject.table
    kv = table._runner._kv
    held = [table._runner.gpu.read(part, 0, part.size).reshape(kv.num_pages, -1) for part in (*kv.keys, *kv.values)]
    pages = [4, 0, kv.num_pages - 1]
    expected = b"".join(part[page].tobytes() for page in pages for part in held)
    assert len(expected) == 3 * table.limits.page_bytes
    assert save(table, pages) == expected


def test_moves_in_flight_follow_each_other(subject: Subject) -> None:
    """Each save sees the load before it and not the one after, though none was waited for."""
    table = subject.table
    for seed in (10, 20, 30):
        one, two = noise(table, 2, seed), noise(table, 2, seed + 1)
        submit_load(table, [9, 13], one)
        submit_save(table, [9, 13])
        submit_load(table, [13, 14], two)
        submit_save(table, [14, 13, 9])
        pages = [retired(table).pages for _ in range(4)]
        size = table.limits.page_bytes
        assert pages == [b"", one, b"", two[size:] + two[:size] + one[:size]]


def test_decode_steps_go_on_across_moves(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same tokens, and the table on the device is not written again after a move."""
    table, uploads = subject.table, []
    dispatches: set[int] = set()
    submit = Runner.submit

    def watched(self: Runner, *args: object, upload: bool = True, **others: object) -> None:
        uploads.append(upload)
        submit(self, *args, upload=upload, **others)  # type: ignore[arg-type]

    def generate(move: Callable[[int], object]) -> list[RetiredStep]:
        feed(table, subject.ids, range(8))
        found = []
        for step in range(STEPS):
            position = NUM_TOKENS + step
            submit_decode(table, position, FROM_DEVICE if step else subject.ids[0])
            dispatches.add(table.dispatches_last_step)
            move(step)
            while table.in_flight > table.limits.max_in_flight - 2:
                found.append(retired(table))
        while table.in_flight:
            found.append(retired(table))
        return found

    expected = [step.tokens for step in generate(lambda step: None)]
    assert len(expected) == STEPS and all(expected)
    data = save(table, [0, 1, 2, 3])
    other = noise(table, 4, seed=3)

    def move(step: int) -> None:
        if step % 4 == 0:
            submit_load(table, [20, 21, 22, 23], other)
        elif step % 4 == 1:
            submit_save(table, [0, 1, 2, 3])
        elif step % 4 == 2:
            submit_load(table, [2, 0], data[2 * (size := table.limits.page_bytes) : 3 * size] + data[:size])

    monkeypatch.setattr(Runner, "submit", watched)
    steps = generate(move)
    assert [step.tokens for step in steps if step.tokens] == expected
    assert [step.pages for step in steps if step.pages] == [data] * (STEPS // 4)
    assert uploads[-STEPS:] == [True] + [False] * (STEPS - 1)
    assert len(dispatches) == 1
    numbers = [step.step for step in steps]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


@pytest.fixture
def tiny() -> LoadedModel:
    """A model of its own, whose device may be spoiled."""
    return load_quietly(TINY)


def test_invalid_moves_are_refused_before_anything_is_submitted(model_of: Callable) -> None:
    table = table_of(model_of(TINY))
    limits, submitted = table.limits, table.last_submitted
    size, last = limits.page_bytes, limits.num_pages - 1
    bad: list[tuple[Sequence[int], int]] = [
        ([limits.num_pages], 1),
        ([-1], 1),
        ([0, limits.num_pages], 2),
        ([], 0),
        ([3, 3], 2),
        (range(MAX_MOVED_PAGES + 1), MAX_MOVED_PAGES + 1),
    ]
    for pages, count in bad:
        table.begin_forward()
        with pytest.raises(ValueError, match="page"):
            table.save_pages(pages)
        with pytest.raises(ValueError, match="page"):
            table.load_pages(pages, bytes(size * count))
        with pytest.raises(ValueError, match="number of rows"):
            table.end_forward()
    for length in (0, size, 2 * size - 1, 2 * size + 4, 3 * size):
        table.begin_forward()
        with pytest.raises(ValueError, match="bytes of the pages"):
            table.load_pages([0, last], bytes(length))
    assert (table.last_submitted, table.in_flight) == (submitted, 0)


def test_a_step_that_moves_does_nothing_else(model_of: Callable) -> None:
    table = table_of(model_of(TINY))
    table.set_pages(0, 0, [0])
    submitted = table.last_submitted

    def copies() -> None:
        table.copy_pages([(0, 1)])

    def rows() -> None:
        table.embed([Row(1, 0, 0)])

    def saves() -> None:
        table.save_pages([0])

    def loads() -> None:
        table.load_pages([0], bytes(table.limits.page_bytes))

    for first, second in ((copies, saves), (rows, loads), (saves, rows), (loads, copies), (saves, loads)):
        table.begin_forward()
        first()
        with pytest.raises(ValueError, match="does nothing else"):
            second()
            table.end_forward()
    assert (table.last_submitted, table.in_flight) == (submitted, 0)
    submit_save(table, [0])
    retired(table)
    with pytest.raises(ValueError, match="number of rows"):  # not once more
        table.end_forward()
    with pytest.raises(ValueError, match="number of rows"):
        table.read_logits(1)


def test_moves_on_a_destroyed_device(tiny: LoadedModel) -> None:
    table = table_of(tiny)
    submit_save(table, [0])
    table._runner.gpu.device.destroy()
    with pytest.raises(DeviceFailed, match="device was lost"):
        table.retire(wait=True)
    with pytest.raises(DeviceFailed, match="device was lost"):
        submit_save(table, [0, 1])
    with pytest.raises(DeviceFailed, match="device was lost"):
        submit_load(table, [0], bytes(table.limits.page_bytes))
    table.close()


@pytest.mark.parametrize("delay", [0.0, 0.011, 0.04])
def test_destroyed_by_another_thread(delay: float, tiny: LoadedModel) -> None:
    table = table_of(tiny)
    data = noise(table, 4, seed=4)

    def destroy() -> None:
        time.sleep(delay)
        table._runner.gpu.device.destroy()

    def move_until_it_fails() -> None:
        for _ in range(1000):
            if table.in_flight >= table.limits.max_in_flight - 1:
                table.retire(wait=True)
                table.retire(wait=True)
            submit_load(table, [0, 1, 2, 3], data)
            submit_save(table, [3, 2, 1])

    other = threading.Thread(target=destroy)
    other.start()
    with pytest.raises(DeviceFailed):
        move_until_it_fails()
    other.join()
    table.close()


def test_a_device_that_has_no_memory_left_for_another_save(tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is submitted then, and what is in flight arrives."""
    table = table_of(tiny)
    data = noise(table, 1, seed=5)
    load(table, [2], data)
    number = submit_save(table, [2])

    def refuse(self: Gpu, name: str, size: int) -> Buffer:
        raise OutOfDeviceMemory(f"The graphics device refused {size} bytes for {name}")

    monkeypatch.setattr(Gpu, "readback", refuse)
    with pytest.raises(OutOfMemory, match="refused"):
        submit_save(table, [3])
    assert (table.last_submitted, table.in_flight) == (number, 1)
    assert retired(table) == RetiredStep(number, (), pages=data)
    assert save(table, [2]) == data
    table.close()


def test_a_device_that_has_no_memory_for_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Gpu.storage
    seen: list[Gpu] = []

    def refuse(self: Gpu, name: str, size: int) -> Buffer:
        if name != "moved pages":
            return storage(self, name, size)
        seen.append(self)
        raise OutOfDeviceMemory(f"The graphics device refused {size} bytes for {name}")

    monkeypatch.setattr(Gpu, "storage", refuse)
    with pytest.raises(ModelNotLoaded, match="has no room for"):
        load_quietly(TINY)
    assert seen and [gpu.allocated_bytes for gpu in seen] == [0] * len(seen)


def test_moves_in_a_trace(tiny: LoadedModel) -> None:
    table = table_of(tiny)
    if "timestamp-query" not in table._runner.gpu.features:
        pytest.skip("the device keeps no time")
    labels: list[str] = []
    table.time_steps(lambda label, start_ns, end_ns: labels.append(label))
    load(table, [1, 2], save(table, [3, 4]))
    table.set_pages(0, 0, [0])
    submit_decode(table, 0, 1)
    retired(table)
    assert labels == ["2 pages saved", "2 pages loaded", "1 rows"]
    table.close()

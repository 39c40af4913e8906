"""Attention over sinks and a window: the truth's mask, garbage in all that is out of reach, and one order of sums."""

from collections.abc import Iterator

import numpy as np
import pytest

from shaders.kernel import KernelCache
from tests.shaders.attention_cases import LENGTHS, NUM_PAGES, ROWS, Case, shuffled
from tests.shaders.harness import Bench, open_bench
from tests.shaders.reference import TOLERANCE, assert_close

LANES = pytest.mark.parametrize("subgroups", [True, False], ids=["subgroup", "workgroup"])
KV_TYPES = pytest.mark.parametrize("kv_type", ["f16", "f32"])
POSITIONS = [*range(4), 15, 16, 17, 18, *range(62, 70), 70, 71, 90, 133, 40, 199, 18, 120, *range(194, 200)]
"""Of rows of one slot: tiles of neighbours, tiles that straddle a page, and tiles whose rows lie far apart."""
WINDOW_ROWS = [(0, at, 5) for at in POSITIONS] + ROWS[:7] + [(0, at, 4) for at in range(97, 109)]
EVERY = range(len(WINDOW_ROWS))
SHAPES = [(8, 1, 2), (64, 3, 2), (80, 5, 1), (128, 4, 1), (256, 2, 1)]
"""(head_dim, query heads per kv head, kv heads)"""
REACHES = [(16, 0), (16, 4), (17, 1), (33, 17), (50, 4), (100, 17), (150, 0)]
"""(window, sinks)"""


@pytest.fixture(scope="module")
def bench(kernels: KernelCache) -> Iterator[Bench]:
    with open_bench(kernels) as opened:
        yield opened


def window_case(bench: Bench, kv_type: str, shape: tuple[int, int, int], reach: tuple[int, int]) -> Case:
    (dim, shared_by, num_kv), (window, sinks) = shape, reach
    return Case(bench, kv_type, shared_by, num_kv, dim, window, sinks, WINDOW_ROWS)


@LANES
@KV_TYPES
@pytest.mark.parametrize("reach", REACHES)
@pytest.mark.parametrize("shape", SHAPES)
def test_is_that_of_float64(bench: Bench, shape, reach, kv_type: str, subgroups: bool) -> None:
    case = window_case(bench, kv_type, shape, reach)
    got = case.run(case.dispatch(shuffled(1), subgroups), EVERY)
    assert_close(got, case.truth(), TOLERANCE["attention"], f"attention {kv_type} {shape} over {reach}")


@LANES
@pytest.mark.parametrize("window", [1, 2, 15, 16, 17, 31, 32, 33, 48, 64, 199, 500])
@pytest.mark.parametrize("sinks", [0, 1, 4, 17])
def test_windows_and_sinks_of_any_size(bench: Bench, window: int, sinks: int, subgroups: bool) -> None:
    case = window_case(bench, "f16", SHAPES[0], (window, sinks))
    got = case.run(case.dispatch(shuffled(2), subgroups), EVERY)
    assert_close(got, case.truth(), TOLERANCE["attention"], f"window {window}, sinks {sinks}")


@LANES
@KV_TYPES
@pytest.mark.parametrize("reach", REACHES)
def test_same_bits_alone_with_garbage_in_all_that_others_reach(bench: Bench, reach, kv_type, subgroups: bool) -> None:
    case = window_case(bench, kv_type, SHAPES[1], reach)
    whole = case.run(case.dispatch(shuffled(3), subgroups), EVERY)
    for row in EVERY:
        alone = case.run(case.dispatch(shuffled(4), subgroups, [row]), [row])
        assert np.array_equal(alone[0], whole[row]), f"row {WINDOW_ROWS[row]}"


@LANES
@pytest.mark.parametrize("reach", REACHES)
def test_same_bits_whatever_the_company(bench: Bench, reach, subgroups: bool) -> None:
    case = window_case(bench, "f16", SHAPES[1], reach)
    bound = case.dispatch(shuffled(5), subgroups)
    whole = case.run(bound, EVERY)
    for shift in (1, 2, 3):
        rows = [*EVERY[shift:], *EVERY[:shift]]
        assert np.array_equal(case.run(bound, rows), whole[rows]), f"tiles that start {shift} rows later"
    assert np.array_equal(case.run(bound, EVERY[::-1]), whole[::-1])


@LANES
@pytest.mark.parametrize("sinks", [0, 4, 17])
def test_a_window_that_reaches_everything_gives_the_bits_of_none(bench: Bench, sinks: int, subgroups: bool) -> None:
    shape = SHAPES[1]
    windowed = window_case(bench, "f16", shape, (max(LENGTHS), sinks))
    whole = window_case(bench, "f16", shape, (0, 0))
    order = range(NUM_PAGES)
    got, expected = (case.run(case.dispatch(order, subgroups), EVERY) for case in (windowed, whole))
    assert np.array_equal(got, expected)


@pytest.mark.parametrize("reach", REACHES)
def test_both_ways_to_talk_give_the_same_bits(bench: Bench, reach) -> None:
    case = window_case(bench, "f32", SHAPES[2], reach)
    subgroup, workgroup = (case.run(case.dispatch(shuffled(6), way), EVERY) for way in (True, False))
    assert np.array_equal(subgroup, workgroup)


@LANES
@pytest.mark.parametrize("size", [1e-3, 40.0])
def test_flat_and_sharp_scores(bench: Bench, size: float, subgroups: bool) -> None:
    case = window_case(bench, "f32", SHAPES[3], (33, 4))
    case.q *= np.float32(size)
    got = case.run(case.dispatch(shuffled(7), subgroups), EVERY)
    assert_close(got, case.truth(), TOLERANCE["attention"], f"queries times {size}")

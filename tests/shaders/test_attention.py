"""attention_paged against float64: shuffled pages, grouped heads, every head size, and garbage where nobody wrote."""

from collections.abc import Iterator

import numpy as np
import pytest

from shaders.kernel import KernelCache
from tests.shaders.attention_cases import NUM_PAGES, ROWS, Case, shuffled
from tests.shaders.harness import Bench, open_bench
from tests.shaders.reference import TOLERANCE, assert_close

LANES = pytest.mark.parametrize("subgroups", [True, False], ids=["subgroup", "workgroup"])
KV_TYPES = pytest.mark.parametrize("kv_type", ["f16", "f32"])
HEAD_DIMS = [8, 64, 80, 128, 256]
GROUPS = [(1, 2), (2, 1), (3, 2), (4, 1), (5, 2), (8, 1)]
"""(query heads per kv head, kv heads)"""


@pytest.fixture(scope="module")
def bench(kernels: KernelCache) -> Iterator[Bench]:
    with open_bench(kernels) as opened:
        yield opened


EVERY = range(len(ROWS))


@LANES
@KV_TYPES
@pytest.mark.parametrize("dim", HEAD_DIMS)
@pytest.mark.parametrize(("shared_by", "num_kv"), GROUPS)
def test_is_that_of_float64(bench: Bench, shared_by: int, num_kv: int, dim: int, kv_type: str, subgroups: bool) -> None:
    case = Case(bench, kv_type, shared_by, num_kv, dim)
    got = case.run(case.dispatch(shuffled(dim), subgroups), EVERY)
    assert_close(got, case.truth(), TOLERANCE["attention"], f"attention {kv_type} {shared_by}:{num_kv} of {dim}")


@LANES
@KV_TYPES
@pytest.mark.parametrize("dim", [64, 80])
def test_same_bits_whatever_the_page_order(bench: Bench, dim: int, kv_type: str, subgroups: bool) -> None:
    case = Case(bench, kv_type, 3, 2, dim)
    first = case.run(case.dispatch(range(NUM_PAGES), subgroups), EVERY)
    for seed in (1, 2):
        assert np.array_equal(case.run(case.dispatch(shuffled(seed), subgroups), EVERY), first)


@LANES
@pytest.mark.parametrize("shared_by", [3, 5])
def test_same_bits_whatever_the_company(bench: Bench, shared_by: int, subgroups: bool) -> None:
    case = Case(bench, "f16", shared_by, 2, 80)
    bound = case.dispatch(shuffled(3), subgroups)
    whole = case.run(bound, EVERY)
    for row in EVERY:
        assert np.array_equal(case.run(bound, [row])[0], whole[row]), f"row {row} alone"
    assert np.array_equal(case.run(bound, EVERY[::-1]), whole[::-1])


@KV_TYPES
@pytest.mark.parametrize("dim", [8, 64, 256])
def test_both_ways_to_talk_give_the_same_bits(bench: Bench, dim: int, kv_type: str) -> None:
    case = Case(bench, kv_type, 5, 2, dim)
    subgroup, workgroup = (case.run(case.dispatch(shuffled(4), way), EVERY) for way in (True, False))
    assert np.array_equal(subgroup, workgroup)


@LANES
@pytest.mark.parametrize("size", [1e-3, 40.0])
def test_flat_and_sharp_scores(bench: Bench, size: float, subgroups: bool) -> None:
    """Nearly equal probabilities, and ones where a single token takes all."""
    case = Case(bench, "f32", 4, 1, 64)
    case.q *= np.float32(size)
    got = case.run(case.dispatch(shuffled(5), subgroups), EVERY)
    assert_close(got, case.truth(), TOLERANCE["attention"], f"queries times {size}")

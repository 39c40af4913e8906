"""attention_paged against float64: shuffled pages, grouped heads, every head size, and garbage where nobody wrote."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest

from shaders.device import Buffer
from shaders.dispatch import Dispatch
from shaders.kernel import KernelCache
from shaders.ops.attention import attention, quads
from shaders.ops.matmul import stride
from tests.shaders import reference
from tests.shaders.harness import POISON, Bench, Floats, open_bench, rng_of
from tests.shaders.reference import PAGE_TOKENS, TOLERANCE, Truth, assert_close

LENGTHS = [1, 16, 17, 18, 119, 200, 34]
"""Tokens of each slot; the last row of each slot looks at all of them."""
EARLIER = [(5, 0), (5, 15), (5, 16), (5, 17), (5, 100), (6, 32)]
"""(slot, position) of rows with tokens of their own sequence behind them."""
ROWS = [(0, length - 1, slot) for slot, length in enumerate(LENGTHS)] + [(0, at, slot) for slot, at in EARLIER]
TABLE_STRIDE = 16
NUM_PAGES = sum(-(-n // PAGE_TOKENS) for n in LENGTHS) + 3
ELEMENT = {"f16": np.float16, "f32": np.float32}
GARBAGE = {
    "f16": np.array([0x7E00, 0x7C00, 0xFC00, 0xFFFF], np.uint16).view(np.float16),
    "f32": np.array([0x7FC00000, 0x7F800000, 0xFF800000, 0xFFFFFFFF], np.uint32).view(np.float32),
}
LANES = pytest.mark.parametrize("subgroups", [True, False], ids=["subgroup", "workgroup"])
KV_TYPES = pytest.mark.parametrize("kv_type", ["f16", "f32"])
HEAD_DIMS = [8, 64, 80, 128, 256]
GROUPS = [(1, 2), (2, 1), (3, 2), (4, 1), (5, 2), (8, 1)]
"""(query heads per kv head, kv heads)"""


@pytest.fixture(scope="module")
def bench(kernels: KernelCache) -> Iterator[Bench]:
    with open_bench(kernels) as opened:
        yield opened


@dataclass
class Case:
    """Sequences' keys and values [tokens, kv_heads, head_dim] by slot, and queries [rows, q_heads, head_dim]."""

    bench: Bench
    kv_type: str
    shared_by: int
    num_kv: int
    dim: int

    def __post_init__(self) -> None:
        rng = rng_of(self.shared_by, self.num_kv, self.dim)
        element = ELEMENT[self.kv_type]
        shape = (self.num_kv, self.dim)
        self.keys = [rng.normal(0, 1, (n, *shape)).astype(element) for n in LENGTHS]
        self.values = [rng.normal(0, 1, (n, *shape)).astype(element) for n in LENGTHS]
        self.q = rng.normal(0, 1.5, (len(ROWS), self.shared_by * self.num_kv, self.dim)).astype(np.float32)
        self.scale = float(np.float32(self.dim**-0.5))
        self.width = self.shared_by * self.num_kv * self.dim
        self.stride = stride(self.width)

    def pages(self, order: Sequence[int]) -> tuple[npt.NDArray[np.generic], npt.NDArray[np.generic], Buffer]:
        """Keys and values laid out in pages that are taken in `order`, garbage wherever no token lies."""
        shape = (NUM_PAGES, PAGE_TOKENS, self.num_kv, self.dim)
        keys, values = (np.resize(GARBAGE[self.kv_type], shape) for _ in range(2))
        table = np.full((len(LENGTHS), TABLE_STRIDE), 0xFFFFFFFF, np.uint32)
        free = iter(order)
        for slot, length in enumerate(LENGTHS):
            for first in range(0, length, PAGE_TOKENS):
                page = table[slot, first // PAGE_TOKENS] = next(free)
                here = slice(first, min(first + PAGE_TOKENS, length))
                keys[page, : here.stop - first] = self.keys[slot][here]
                values[page, : here.stop - first] = self.values[slot][here]
        return reference.lay_keys(keys), reference.lay_values(values), self.bench.upload("page table", table)

    def dispatch(self, order: Sequence[int], subgroups: bool) -> tuple[Dispatch, Buffer, Buffer]:
        """The kernel bound to pages in this order, with the buffers of queries and of results."""
        if subgroups:
            self.bench.need_subgroups()
        keys, values, table = self.pages(order)
        num_q = self.shared_by * self.num_kv
        heads = self.bench.constants.heads(
            head_dim=self.dim,
            num_q_heads=num_q,
            num_kv_heads=self.num_kv,
            rope_dim=self.dim,
            table_stride=TABLE_STRIDE,
            q_stride=self.stride,
            quads=quads(num_q, self.num_kv),
            scale=self.scale,
        )
        q, y = (self.bench.gpu.storage(name, 4 * len(ROWS) * self.stride) for name in ("q", "y"))
        found = attention(
            self.bench.kernels,
            step=self.bench.step,
            heads=heads,
            page_table=table,
            q=q,
            keys=self.bench.upload("keys", keys),
            values=self.bench.upload("values", values),
            y=y,
            num_q_heads=num_q,
            num_kv_heads=self.num_kv,
            head_dim=self.dim,
            kv_type=self.kv_type,
            subgroups=subgroups,
        )
        return found, q, y

    def run(self, bound: tuple[Dispatch, Buffer, Buffer], rows: Sequence[int]) -> Floats:
        """[rows, width] of a step that holds only these rows."""
        dispatch, q, y = bound
        queries = np.full((len(ROWS), self.stride), np.nan, np.float32)  # what lies beside the heads must not matter
        queries[: len(rows), : self.width] = self.q[list(rows)].reshape(len(rows), -1)
        self.bench.gpu.write(q, 0, queries)
        self.bench.gpu.write(y, 0, np.full(queries.shape, POISON, np.float32))
        self.bench.run([dispatch], [ROWS[r] for r in rows])
        whole = self.bench.floats(y, len(ROWS), self.stride)
        assert (whole[len(rows) :] == POISON).all() and (whole[:, self.width :] == POISON).all()
        return whole[: len(rows), : self.width]

    def truth(self) -> Truth:
        each = [
            reference.attention(
                self.q[r].astype(np.float64),
                self.keys[slot][: at + 1].astype(np.float64),
                self.values[slot][: at + 1].astype(np.float64),
                self.scale,
            )
            for r, (_, at, slot) in enumerate(ROWS)
        ]
        return Truth(*(np.stack([t[part].reshape(-1) for t in each]) for part in (0, 1)))


def shuffled(seed: int) -> list[int]:
    return np.random.default_rng(seed).permutation(NUM_PAGES).tolist()


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

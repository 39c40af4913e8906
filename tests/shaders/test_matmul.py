"""The mat-muls against float64, and the promise that a token's result does not depend on its company.

Every block type, one token and tiles of eight, and rows and widths that fill neither a tile nor a slice.
"""

from collections.abc import Iterator

import numpy as np
import pytest

from shaders.kernel import KernelCache
from shaders.ops.elementwise import silu_mul
from shaders.ops.matmul import linear, stride
from tests.shaders.harness import BLOCKS, Bench, open_bench, padded
from tests.shaders.matmul_cases import TOKENS, Case, gate_up_case, head_case, linear_case, out_case
from tests.shaders.qkv_cases import HEADS, qkv_case
from tests.shaders.reference import assert_close

COUNTS = (1, 2, 7, 8, 9)
ALONE = (3, 8, 16)
WIDE = (40, 1120)
"""More slices than clusters, and more partial sums of the norm than a cluster has lanes."""

# Compiling is what these tests cost: the plain kernel is compiled once per number of slices on Mesa, so its widths are
# two slices mostly; each fused one is compiled once, and the split among clusters matters to no block type.
SLICES_OF_TWO = {
    block: [(33, 96), (72, 128), (257, 128)] if "Q" in block else [(33, 100), (72, 65), (257, 127)] for block in BLOCKS
}
ODD = {block: [(1, 32), (33, 96), (257, 320)] if "Q" in block else [(1, 1), (33, 100), (257, 319)] for block in BLOCKS}
GROUPS = {
    block: [(8, 32), (24, 96), (136, 320)] if "Q" in block else [(8, 7), (24, 100), (136, 319)] for block in BLOCKS
}


def cases(shapes: dict[str, list[tuple[int, int]]]) -> list[object]:
    return [pytest.param(block, *at, id=f"{block}-{at[0]}x{at[1]}") for block in BLOCKS for at in shapes[block]]


def split(shapes: dict[str, list[tuple[int, int]]], *clustered: str) -> pytest.MarkDecorator:
    """Each shape with one cluster; with four, those of `clustered`."""
    found = [
        pytest.param(block, *shape, clusters, id=f"{block}-{shape[0]}x{shape[1]}-clusters{clusters}")
        for block in BLOCKS
        for clusters in ((1, 4) if block in clustered else (1,))
        for shape in [*shapes[block], WIDE]
    ]
    return pytest.mark.parametrize(("block", "rows", "k", "clusters"), found)


@pytest.fixture(scope="module")
def bench(kernels: KernelCache) -> Iterator[Bench]:
    with open_bench(kernels) as opened:
        yield opened


def check(case: Case) -> None:
    """All tokens against float64; then fewer, single and turned-round tokens against those, to the bit."""
    whole = case.run(range(TOKENS))
    for name, truth in case.truth.items():
        assert_close(whole[name], truth, case.tolerance, f"{case.name}: {name} of {TOKENS} tokens")
    orders = [range(count) for count in COUNTS] + [[token] for token in ALONE] + [range(TOKENS - 1, -1, -1)]
    for order in orders:
        got = case.run(order)
        for name in got:
            same = (got[name] == whole[name][list(order)]).all(axis=1)
            assert same.all(), f"{case.name}: {name} of token {order[int(same.argmin())]} differs in company {order}"


@pytest.mark.parametrize(("block", "rows", "k"), cases(SLICES_OF_TWO))
def test_linear(bench: Bench, block: str, rows: int, k: int) -> None:
    check(linear_case(bench, block, rows, k))


@pytest.mark.parametrize(("rows", "k"), [(1, 1), (9, 64), WIDE], ids=str)
def test_linear_of_other_widths(bench: Bench, rows: int, k: int) -> None:
    check(linear_case(bench, "F16", rows, k))


@pytest.mark.parametrize(("bias", "sampled"), [(True, False), (False, True)], ids=["bias", "sampled"])
def test_linear_with_bias_and_of_samples(bench: Bench, bias: bool, sampled: bool) -> None:
    check(linear_case(bench, "Q4_1", 257, 96, bias=bias, sampled=sampled))


@split(ODD, "Q4_1", "Q8_0")
def test_head_fused(bench: Bench, block: str, rows: int, k: int, clusters: int) -> None:
    check(head_case(bench, block, rows, k, clusters=clusters))


@split(ODD, *BLOCKS)
def test_out_fused(bench: Bench, block: str, rows: int, k: int, clusters: int) -> None:
    check(out_case(bench, block, rows, k, clusters=clusters))


@pytest.mark.parametrize("clusters", [1, 4])
def test_out_fused_with_bias(bench: Bench, clusters: int) -> None:
    check(out_case(bench, "Q4_1", 257, 96, clusters=clusters, bias=True))


@split(GROUPS, "Q4_1", "Q8_0")
def test_gate_up_fused(bench: Bench, block: str, rows: int, k: int, clusters: int) -> None:
    check(gate_up_case(bench, block, rows, k, clusters=clusters))


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("kv_type", ["f16", "f32"])
def test_qkv_fused(bench: Bench, kv_type: str, heads: tuple[int, int, int, int]) -> None:
    check(qkv_case(bench, ["Q4_1"], heads, 96, clusters=1, kv_type=kv_type))


@pytest.mark.parametrize(("block", "clusters"), [*((block, 1) for block in BLOCKS), ("Q4_1", 4), ("Q8_0", 4)])
def test_qkv_fused_of_each_type(bench: Bench, block: str, clusters: int) -> None:
    check(qkv_case(bench, [block], (4, 2, 24, 24), 1120, clusters=clusters, kv_type="f32"))


def test_qkv_fused_with_bias(bench: Bench) -> None:
    check(qkv_case(bench, ["Q4_1"], (3, 1, 40, 40), 96, clusters=1, kv_type="f16", bias=True))


def test_qkv_fused_of_three_types(bench: Bench) -> None:
    check(qkv_case(bench, ["Q4_1", "F32", "Q8_0"], (3, 1, 64, 64), 96, clusters=1, kv_type="f32"))


@pytest.mark.parametrize("window_tiles", [1, 2, 3])
@pytest.mark.parametrize("block", ["F16", "Q4_1"])
@pytest.mark.parametrize("op", ["linear", "head", "out", "gate_up", "qkv"])
def test_matrices_in_windows(bench: Bench, op: str, block: str, window_tiles: int) -> None:
    if op == "linear":
        case = linear_case(bench, block, 150, 96, window_tiles=window_tiles)
    elif op == "head":
        case = head_case(bench, block, 150, 96, clusters=1, window_tiles=window_tiles)
    elif op == "out":
        case = out_case(bench, block, 150, 96, clusters=1, window_tiles=window_tiles)
    elif op == "gate_up":
        case = gate_up_case(bench, block, 72, 96, clusters=1, window_tiles=window_tiles)
    else:
        case = qkv_case(bench, [block], (4, 2, 24, 24), 96, clusters=1, kv_type="f32", window_tiles=window_tiles)
    assert len(case.dispatches) == -(-(192 if op == "qkv" else 150) // (32 * window_tiles))
    check(case)


@pytest.mark.parametrize("block", BLOCKS)
def test_fused_and_plain_agree_to_the_bit(bench: Bench, block: str) -> None:
    """With one cluster and nothing folded in, both kernel sets add in one order."""
    rows, k = 72, 128
    plain = linear_case(bench, block, rows, k).run(range(TOKENS))["y"][:, :rows]
    fused = out_case(bench, block, rows, k, clusters=1, residual_size=0.0).run(range(TOKENS))["residual"][:, :rows]
    assert np.array_equal(plain, fused)

    head = head_case(bench, block, rows, k, clusters=1, unit=True)
    case = linear_case(bench, block, rows, k)
    case.inputs[0] = (case.inputs[0][0], head.inputs[0][1])
    assert np.array_equal(case.run(range(TOKENS))["y"], head.run(range(TOKENS))["y"])


def test_swiglu_fused_and_plain_agree_to_the_bit(bench: Bench) -> None:
    outputs, k = 72, 96
    fused = gate_up_case(bench, "Q4_1", outputs, k, clusters=1, unit=True)
    width = stride(outputs)
    matrix, _ = bench.matrix("Q4_1", [outputs, outputs], k)
    both, gate, up = (bench.gpu.storage(name, 4 * TOKENS * 2 * width) for name in ("both", "gate", "up"))
    bench.run(linear(bench.context(), matrix, fused.inputs[0][0], both, y_stride=2 * outputs), fused.rows)
    products = bench.floats(both, TOKENS, 2 * outputs)
    bench.gpu.write(gate, 0, padded(products[:, :outputs], width))
    bench.gpu.write(up, 0, padded(products[:, outputs:], width))
    bench.run([silu_mul(bench.context(), gate, up, width=outputs)], fused.rows)
    plain = bench.floats(up, TOKENS, width)[:, :outputs]
    assert np.array_equal(plain, fused.run(range(TOKENS))["y"][:, :outputs])

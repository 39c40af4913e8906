"""Embedding, norms and the small kernels against float64, at widths that fill neither a vector nor a slice."""

from collections.abc import Iterator

import numpy as np
import pytest

from shaders.kernel import KernelCache
from shaders.ops import elementwise
from shaders.ops.matmul import FoldedNorm, stride
from shaders.step_table import FROM_DEVICE
from tests.shaders import reference
from tests.shaders.harness import BLOCKS, POISON, Bench, open_bench, padded, rng_of
from tests.shaders.reference import TOLERANCE, Truth, assert_close

TOKENS = 5
EPS = 1e-5
WIDTHS = [1, 63, 64, 65, 300, 1100]
VOCAB = 133
LAST = np.array([7, 132, 31, 32], np.uint32)
IDS = [(0, 0), (132, 1), (FROM_DEVICE, 1), (31, 0), (32, 0), (FROM_DEVICE, 3), (63, 2), (64, 2), (FROM_DEVICE, 2)]
"""(token or the slot's last one, slot)"""
ROWS = [(token, 0, slot) for token, slot in IDS]
WANTED = [int(LAST[slot]) if token == FROM_DEVICE else token for token, slot in IDS]


@pytest.fixture(scope="module")
def bench(kernels: KernelCache) -> Iterator[Bench]:
    with open_bench(kernels) as opened:
        yield opened


def folded(bench: Bench, width: int, tokens: int) -> FoldedNorm:
    """Whose buffers start as poison."""
    parts = -(-width // 128)
    return FoldedNorm(
        x_gain=bench.upload("x gain", np.full(tokens * stride(width), POISON, np.float32)),
        partials=bench.upload("partials", np.full(tokens * 4 * parts, POISON, np.float32)),
        width=width,
        parts=parts,
        eps=EPS,
    )


def check_prepared(bench: Bench, norm: FoldedNorm, x: np.ndarray, gain: np.ndarray, name: str) -> None:
    """x * gain to the bit, and partial sums whose whole is that of the squares."""
    width = x.shape[1]
    x_gain = bench.floats(norm.x_gain, len(x), stride(width))
    assert np.array_equal(x_gain[:, :width], x * gain), name
    assert not x_gain[:, width:].any(), name
    partials = bench.floats(norm.partials, len(x), 4 * norm.parts).astype(np.float64).sum(axis=1)
    squares = (x.astype(np.float64) ** 2).sum(axis=1)
    assert_close(partials.astype(np.float32), Truth(squares, squares), TOLERANCE["norm"], f"{name}: sums of squares")


@pytest.mark.parametrize("window_tiles", [0, 1, 3])
@pytest.mark.parametrize("fused", [False, True], ids=["embed", "embed_fused"])
@pytest.mark.parametrize("block", BLOCKS)
def test_embedding_is_the_dequantized_row(bench: Bench, block: str, fused: bool, window_tiles: int) -> None:
    k = 160 if "Q" in block else 101
    matrix, weights = bench.matrix(block, [VOCAB], k, window_tiles=window_tiles)
    x = bench.upload("x", np.full(len(ROWS) * stride(k), POISON, np.float32))
    gain = rng_of("gain", k).normal(1, 0.3, k).astype(np.float32)
    norm = folded(bench, k, len(ROWS))
    dispatches = elementwise.embed(
        bench.context(),
        matrix,
        x,
        last_tokens=bench.upload("last tokens", LAST),
        folded=norm if fused else None,
        gain=bench.vector("gain", gain) if fused else None,
    )
    assert len(dispatches) == (-(-5 // window_tiles) if window_tiles else 1)
    bench.run(dispatches, ROWS)
    got = bench.floats(x, len(ROWS), stride(k))
    expected = weights[WANTED].astype(np.float32)
    assert np.array_equal(got[:, :k], expected)
    assert not got[:, k:].any()
    if fused:
        check_prepared(bench, norm, expected, gain, f"embed_fused {block}")


@pytest.mark.parametrize("width", WIDTHS)
def test_rms_norm(bench: Bench, width: int) -> None:
    rng = rng_of("norm", width)
    x = rng.normal(0, 1, (TOKENS, width)).astype(np.float32)
    x[1], x[2], x[3] = 0, x[2] * np.float32(1e-4), x[3] * np.float32(1e6)
    gain = rng.normal(1, 0.3, width).astype(np.float32)
    source = bench.upload("x", padded(x, stride(width)))
    y = bench.upload("y", np.full(TOKENS * stride(width), POISON, np.float32))
    dispatch = elementwise.rms_norm(bench.context(), source, y, gain=bench.vector("gain", gain), width=width, eps=EPS)
    bench.run([dispatch], [(0, 0, 0)] * TOKENS)
    got = bench.floats(y, TOKENS, stride(width))
    value = reference.rms_norm(x.astype(np.float64), gain.astype(np.float64), EPS)
    assert_close(got[:, :width], Truth(value, np.abs(value)), TOLERANCE["norm"], f"rms_norm of {width}")
    assert not got[:, width:].any()


@pytest.mark.parametrize("width", WIDTHS)
def test_norm_prepare(bench: Bench, width: int) -> None:
    rng = rng_of("prepare", width)
    x = rng.normal(0, 1, (TOKENS, width)).astype(np.float32)
    gain = rng.normal(1, 0.3, width).astype(np.float32)
    norm = folded(bench, width, TOKENS)
    source = bench.upload("x", padded(x, stride(width)))
    dispatch = elementwise.norm_prepare(bench.context(), source, norm, gain=bench.vector("gain", gain))
    bench.run([dispatch], [(0, 0, 0)] * TOKENS)
    check_prepared(bench, norm, x, gain, f"norm_prepare of {width}")


@pytest.mark.parametrize("width", WIDTHS)
def test_add(bench: Bench, width: int) -> None:
    x, y = (rng_of(name, width).normal(0, 1, (TOKENS, width)).astype(np.float32) for name in "xy")
    one, two = bench.upload("x", padded(x, stride(width))), bench.upload("y", padded(y, stride(width)))
    bench.run([elementwise.add(bench.context(), one, two, width=width)], [(0, 0, 0)] * TOKENS)
    assert np.array_equal(bench.floats(two, TOKENS, stride(width)), padded(x + y, stride(width)))


@pytest.mark.parametrize("width", WIDTHS)
def test_silu_mul(bench: Bench, width: int) -> None:
    rng = rng_of("silu", width)
    gate, up = (rng.normal(0, size, (TOKENS, width)).astype(np.float32) for size in (4, 1))
    check_silu(bench, gate, up)


def test_silu_far_from_zero(bench: Bench) -> None:
    sizes = [0, 1e-30, 20, 87, 90, 104, 1e4, 3e38]
    gate = np.array([sizes + [-size for size in sizes]] * TOKENS, np.float32)
    check_silu(bench, gate, np.ones_like(gate))


def check_silu(bench: Bench, gate: np.ndarray, up: np.ndarray) -> None:
    width = gate.shape[1]
    source, y = bench.upload("gate", padded(gate, stride(width))), bench.upload("up", padded(up, stride(width)))
    bench.run([elementwise.silu_mul(bench.context(), source, y, width=width)], [(0, 0, 0)] * TOKENS)
    got = bench.floats(y, TOKENS, stride(width))
    value = reference.silu(gate.astype(np.float64)) * up
    # Far below zero, exp's relative error grows with its argument; nothing there is large.
    size = np.abs(value) * (1 + np.abs(gate)) + 1e-30
    assert_close(got[:, :width], Truth(value, size), TOLERANCE["silu"], f"silu_mul of {width}")
    assert not got[:, width:].any()

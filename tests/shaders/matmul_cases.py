"""Mat-muls ready to run on any choice of tokens, with what each token's results should be. Not a test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from shaders.device import Buffer
from shaders.dispatch import Dispatch
from shaders.ops import matmul
from shaders.ops.matmul import FoldedNorm, stride
from tests.shaders import reference
from tests.shaders.harness import POISON, Bench, Floats, padded, rng_of
from tests.shaders.reference import Real, Truth

TOKENS = 17
EPS = 1e-5


@dataclass(kw_only=True)
class Case:
    """inputs: what is uploaded for the tokens, a row each. outputs: buffers, with what they hold before, a row each.

    A sampled op computes its samples, which name rows of the step: its inputs stay, and the samples vary.
    """

    bench: Bench
    name: str
    dispatches: list[Dispatch]
    inputs: list[tuple[Buffer, Floats]]
    outputs: dict[str, tuple[Buffer, Floats]]
    truth: dict[str, Truth]
    tolerance: float
    sampled: bool = False
    rows: list[tuple[int, int, int]] = field(default_factory=lambda: [(0, 0, 0)] * TOKENS)

    def run(self, tokens: Sequence[int]) -> dict[str, Floats]:
        """Outputs of the tokens, in a step that holds only these. Rows beyond must stay as they were."""
        order = list(tokens)
        gpu, rest = self.bench.gpu, TOKENS - len(order)
        for buffer, values in self.inputs:
            gpu.write(buffer, 0, values if self.sampled else values[order])
        for buffer, before in self.outputs.values():
            gpu.write(buffer, 0, np.concatenate([before[order], np.full((rest, before.shape[1]), POISON)]))
        if self.sampled:
            self.bench.run(self.dispatches, self.rows, order)
        else:
            self.bench.run(self.dispatches, [self.rows[t] for t in order])
        found = {}
        for name, (buffer, before) in self.outputs.items():
            whole = self.bench.floats(buffer, TOKENS, before.shape[1])
            assert (whole[len(order) :] == POISON).all(), f"{self.name}: {name} is written beyond {len(order)} tokens"
            found[name] = whole[: len(order)]
        return found


@dataclass
class Normed:
    """An input of a folded norm: x [17, width], one token all zeros, one so small that eps counts."""

    x: Real
    gain: Real
    norm: FoldedNorm
    inputs: list[tuple[Buffer, Floats]]

    @property
    def value(self) -> Real:
        return reference.rms_norm(self.x, self.gain, EPS)


def normed_input(bench: Bench, width: int, *, unit: bool = False) -> Normed:
    """With `unit`, the norm's factor is exactly one."""
    rng = rng_of("normed", width)
    x = rng.normal(0, 1.5, (TOKENS, width)).astype(np.float32)
    x[5], x[6] = 0, x[6] * np.float32(1e-3)
    gain = rng.normal(1, 0.3, width).astype(np.float32)
    parts = -(-width // 128)
    squares = padded(x, parts * 128).astype(np.float64) ** 2
    partials = squares.reshape(TOKENS, parts * 4, 32).sum(axis=2).astype(np.float32)
    norm_width, eps = width, EPS
    if unit:
        partials[:] = 0
        partials[:, 3] = 1
        norm_width, eps = 1, 0.0
    x_gain = padded(x * gain, stride(width))
    norm = FoldedNorm(
        x_gain=bench.upload("x gain", x_gain),
        partials=bench.upload("partials", partials),
        width=norm_width,
        parts=parts,
        eps=eps,
    )
    inputs = [(norm.x_gain, x_gain), (norm.partials, partials)]
    return Normed(x.astype(np.float64), gain.astype(np.float64), norm, inputs)


def output(bench: Bench, name: str, values: npt.NDArray[np.generic], width: int) -> tuple[Buffer, Floats]:
    """A buffer [17, width] that holds `values` and poison beside them before each run."""
    before = np.full((TOKENS, width), POISON, np.float32)
    before[:, : values.shape[1]] = values
    return bench.gpu.storage(name, before.nbytes), before


def blank(bench: Bench, width: int) -> tuple[Buffer, Floats]:
    return output(bench, "y", np.zeros((TOKENS, 0)), width)


def some_bias(bench: Bench, rows: int, wanted: bool) -> tuple[Buffer | None, Real | None]:
    if not wanted:
        return None, None
    values = rng_of("bias", rows).normal(0, 1, rows).astype(np.float32)
    return bench.vector("bias", values), values.astype(np.float64)


def widened(truth: Truth, width: int) -> Truth:
    """Beside its values, the poison that nobody may write over."""
    value = np.full((len(truth.value), width), np.float64(POISON))
    size = np.zeros_like(value)
    value[:, : truth.value.shape[1]] = truth.value
    size[:, : truth.size.shape[1]] = truth.size
    return Truth(value, size)


def linear_case(
    bench: Bench, block: str, rows: int, k: int, *, bias: bool = False, sampled: bool = False, window_tiles: int = 0
) -> Case:
    matrix, weights = bench.matrix(block, [rows], k, window_tiles=window_tiles)
    x = padded(rng_of("x", k).normal(0, 1, (TOKENS, k)), stride(k))
    x_buffer = bench.upload("x", x)
    bias_buffer, bias_values = some_bias(bench, rows, bias)
    width = rows + 3
    y = blank(bench, width)
    dispatches = matmul.linear(
        bench.context(), matrix, x_buffer, y[0], bias=bias_buffer, y_stride=width, sampled=sampled
    )
    truth = reference.linear(weights, x[:, :k].astype(np.float64), bias_values)
    return Case(
        bench=bench,
        name=f"linear {block} {rows}x{k}",
        dispatches=dispatches,
        inputs=[(x_buffer, x)],
        outputs={"y": y},
        truth={"y": widened(truth, width)},
        tolerance=reference.TOLERANCE[block],
        sampled=sampled,
    )


def head_case(
    bench: Bench, block: str, rows: int, k: int, *, clusters: int, window_tiles: int = 0, unit: bool = False
) -> Case:
    bench.need_subgroups()
    matrix, weights = bench.matrix(block, [rows], k, window_tiles=window_tiles)
    normed = normed_input(bench, k, unit=unit)
    width = rows + 3
    y = blank(bench, width)
    truth = reference.linear(weights, normed.x * normed.gain if unit else normed.value)
    return Case(
        bench=bench,
        name=f"head_fused {block} {rows}x{k} clusters {clusters}",
        dispatches=matmul.head(bench.context(clusters), matrix, normed.norm, y[0], y_stride=width),
        inputs=normed.inputs,
        outputs={"y": y},
        truth={"y": widened(truth, width)},
        tolerance=reference.TOLERANCE[block],
        sampled=True,
    )


def gate_up_case(
    bench: Bench, block: str, outputs: int, k: int, *, clusters: int, window_tiles: int = 0, unit: bool = False
) -> Case:
    bench.need_subgroups()
    matrix, weights = bench.matrix(block, [outputs, outputs], k, interleaved=True, window_tiles=window_tiles)
    normed = normed_input(bench, k, unit=unit)
    width = stride(outputs)
    y = blank(bench, width)
    value = normed.x * normed.gain if unit else normed.value
    gate, up = (reference.linear(part, value) for part in (weights[:outputs], weights[outputs:]))
    return Case(
        bench=bench,
        name=f"gate_up_fused {block} {outputs}x{k} clusters {clusters}",
        dispatches=matmul.gate_up(bench.context(clusters), matrix, normed.norm, y[0]),
        inputs=normed.inputs,
        outputs={"y": y},
        truth={"y": widened(reference.swiglu(gate, up), width)},
        tolerance=reference.TOLERANCE[block] + reference.TOLERANCE["silu"],
    )


def out_case(
    bench: Bench,
    block: str,
    rows: int,
    k: int,
    *,
    clusters: int,
    bias: bool = False,
    window_tiles: int = 0,
    residual_size: float = 1.0,
) -> Case:
    bench.need_subgroups()
    matrix, weights = bench.matrix(block, [rows], k, window_tiles=window_tiles)
    rng = rng_of("out", rows, k)
    x = padded(rng_of("x", k).normal(0, 1, (TOKENS, k)), stride(k))
    before = (rng.normal(0, 1, (TOKENS, rows)) * residual_size).astype(np.float32)
    gain = rng.normal(1, 0.3, rows).astype(np.float32)
    x_buffer, parts, width = bench.upload("x", x), -(-rows // 128), stride(rows)
    bias_buffer, bias_values = some_bias(bench, rows, bias)
    residual = output(bench, "residual", before, width)
    gained = blank(bench, width)
    partials = blank(bench, 4 * parts)
    norm = FoldedNorm(x_gain=gained[0], partials=partials[0], width=rows, parts=parts, eps=EPS)
    dispatches = matmul.out(
        bench.context(clusters),
        matrix,
        x_buffer,
        residual[0],
        norm,
        gain=bench.vector("gain", gain),
        bias=bias_buffer,
    )
    product = reference.linear(weights, x[:, :k].astype(np.float64), bias_values)
    sums = Truth(product.value + before, product.size + np.abs(before))
    tiles = -(-rows // 32)
    squares = padded_tiles(sums.value**2, tiles)
    slopes = padded_tiles(2 * np.abs(sums.value) * sums.size + sums.value**2, tiles)
    return Case(
        bench=bench,
        name=f"out_fused {block} {rows}x{k} clusters {clusters}",
        dispatches=dispatches,
        inputs=[(x_buffer, x)],
        outputs={"residual": residual, "x_gain": gained, "partials": partials},
        truth={
            "residual": widened(sums, width),
            "x_gain": widened(Truth(sums.value * gain, sums.size * np.abs(gain)), width),
            "partials": widened(Truth(squares, slopes), 4 * parts),
        },
        tolerance=reference.TOLERANCE[block],
    )


def padded_tiles(values: Real, tiles: int) -> Real:
    """Sums over each tile's 32 rows, [tokens, tiles]."""
    whole = np.zeros((len(values), tiles * 32))
    whole[:, : values.shape[1]] = values
    return whole.reshape(len(values), tiles, 32).sum(axis=2)

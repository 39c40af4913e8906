"""Float64 truth for every kernel, written from the formulas, and the one table of tolerances.

A sum of many terms can only be as exact as its terms are large, so a Truth carries both: what should come out, and
the size that its error is measured against. Knows layouts as documents describe them, no kernel. No device.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Real = npt.NDArray[np.float64]
PAGE_TOKENS = 16

TOLERANCE = {
    # Mat-muls by block type, against the sum of |weight * x|. Q4_1 adds d * sum(q x) and m * sum(x), which may cancel.
    "F32": 1e-6,
    "F16": 1e-6,
    "BF16": 1e-6,
    "Q8_0": 1e-6,
    "Q4_0": 1e-6,
    "Q4_1": 6e-6,
    # Others, against the size of their own terms.
    "rotation": 1e-6,
    "norm": 1e-6,
    "silu": 2e-6,
    "attention": 2e-5,
    # Kept as f16: one unit in the last place, since a device may round or cut.
    "f16 page": 2**-10,
}


class Truth(NamedTuple):
    """value: what is expected; size: of the terms it is made of, so that |error| <= tolerance * size."""

    value: Real
    size: Real


def assert_close(got: npt.NDArray[np.float32], truth: Truth, tolerance: float, name: str) -> None:
    """Fails with the case's name, the worst element's place, and both numbers there."""
    assert got.shape == truth.value.shape, (name, got.shape, truth.value.shape)
    error = np.abs(got.astype(np.float64) - truth.value)
    ratio = np.where(np.isnan(error), np.inf, error) / (truth.size + 1e-30)
    if ratio.size and ratio.max() > tolerance:
        at = np.unravel_index(int(ratio.argmax()), ratio.shape)
        place = tuple(int(i) for i in at)
        raise AssertionError(
            f"{name}: at {place} got {got[at]!r}, expected {truth.value[at]!r}; off by {ratio[at]:.2e} of its terms, "
            f"allowed is {tolerance:.0e}; {int((ratio > tolerance).sum())} of {ratio.size} are off"
        )


def linear(weights: Real, x: Real, bias: Real | None = None) -> Truth:
    """W x + b; weights [rows, K], x [tokens, K], bias [rows]."""
    added = np.zeros(len(weights)) if bias is None else bias
    return Truth(x @ weights.T + added, np.abs(x) @ np.abs(weights).T + np.abs(added))


def rms_norm(x: Real, gain: Real, eps: float) -> Real:
    """Zhang & Sennrich 2019, equation 4; x [tokens, width]."""
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * gain


def silu(x: Real) -> Real:
    """x times its logistic function."""
    return x * np.where(x >= 0, 1 / (1 + np.exp(-np.abs(x))), np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x))))


def swiglu(gate: Truth, up: Truth) -> Truth:
    """silu(gate) * up. silu's slope is below 1.1 everywhere."""
    value = silu(gate.value) * up.value
    size = 1.1 * gate.size * np.abs(up.value) + np.abs(silu(gate.value)) * up.size + np.abs(value)
    return Truth(value, size)


def rope_table(positions: int, rope_dim: int, theta: float = 10000.0) -> Real:
    """[positions, rope_dim/2, 2] of cosine and sine."""
    angles = np.arange(positions)[:, None] * theta ** (-np.arange(0, rope_dim, 2) / rope_dim)
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1)


def rotate(x: Truth, turns: Real) -> Truth:
    """Turn adjacent pairs of leading elements; x [tokens, heads, head_dim], turns [tokens, rope_dim/2, 2]."""
    value, size = x.value.copy(), x.size.copy()
    rope_dim = 2 * turns.shape[1]
    cos, sin = turns[:, None, :, 0], turns[:, None, :, 1]
    even, odd = x.value[..., 0:rope_dim:2], x.value[..., 1:rope_dim:2]
    value[..., 0:rope_dim:2] = even * cos - odd * sin
    value[..., 1:rope_dim:2] = even * sin + odd * cos
    both = x.size[..., 0:rope_dim:2] + x.size[..., 1:rope_dim:2]
    size[..., 0:rope_dim:2] = size[..., 1:rope_dim:2] = both
    return Truth(value, size)


def attention(q: Real, keys: Real, values: Real, scale: float) -> Truth:
    """softmax(scale q K^T) V of one token; q [heads, head_dim], keys and values [tokens, kv_heads, head_dim]."""
    shared_by = q.shape[0] // keys.shape[1]
    wide_keys, wide_values = (np.repeat(a, shared_by, axis=1) for a in (keys, values))
    scores = scale * np.einsum("hd,thd->ht", q, wide_keys)
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    probs = powers / powers.sum(axis=1, keepdims=True)
    # A score's error, relative to the size of its terms, becomes a relative error of its probability.
    terms = 1 + scale * np.einsum("hd,thd->ht", np.abs(q), np.abs(wide_keys)).max(axis=1, keepdims=True)
    size = terms * np.einsum("ht,thd->hd", probs, np.abs(wide_values))
    return Truth(np.einsum("ht,thd->hd", probs, wide_values), size)


def lay_keys(keys: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """[pages, 16, kv_heads, head_dim] -> the device's [pages, kv_heads, head_dim/8, 16, 8]."""
    pages, tokens, heads, dim = keys.shape
    return np.ascontiguousarray(keys.reshape(pages, tokens, heads, dim // 8, 8).transpose(0, 2, 3, 1, 4))


def lay_values(values: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """[pages, 16, kv_heads, head_dim] -> the device's [pages, kv_heads, 16, head_dim]."""
    return np.ascontiguousarray(values.transpose(0, 2, 1, 3))


def read_keys(raw: npt.NDArray[np.generic], heads: int, dim: int) -> npt.NDArray[np.generic]:
    """lay_keys backwards, from flat elements."""
    pages = raw.reshape(-1, heads, dim // 8, PAGE_TOKENS, 8)
    return pages.transpose(0, 3, 1, 2, 4).reshape(len(pages), PAGE_TOKENS, heads, dim)


def read_values(raw: npt.NDArray[np.generic], heads: int, dim: int) -> npt.NDArray[np.generic]:
    """lay_values backwards, from flat elements."""
    return raw.reshape(-1, heads, PAGE_TOKENS, dim).transpose(0, 2, 1, 3)

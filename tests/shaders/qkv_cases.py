"""qkv_fused ready to run on any choice of tokens: queries come back by token, keys and values from their pages.

Not a test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shaders.device import Buffer
from shaders.ops import matmul
from shaders.ops.attention import quads
from shaders.ops.matmul import stride
from shaders.packing import TILE_ROWS, PackedMatrix
from tests.shaders import reference
from tests.shaders.harness import POISON, Bench, Floats
from tests.shaders.matmul_cases import TOKENS, Case, blank, normed_input, some_bias, widened
from tests.shaders.reference import PAGE_TOKENS, Real, Truth

Heads = tuple[int, int, int, int]
"""(num_q_heads, num_kv_heads, head_dim, rope_dim)"""

HEADS = [(1, 1, 8, 8), (3, 1, 8, 4), (8, 1, 64, 32), (4, 4, 64, 64), (2, 1, 80, 20), (2, 2, 128, 128), (1, 1, 256, 64)]
SLOTS, TABLE_STRIDE = 3, 9
PAGES = SLOTS * TABLE_STRIDE + 2
POSITIONS = [0, 15, 16, 17, 100, 101, 143, 0, 1, 2, 3, 4, 5, 6, 7, 31, 32]
SLOT_OF = [0] * 7 + [1] * 8 + [2] * 2
ROWS = [(0, position, slot) for position, slot in zip(POSITIONS, SLOT_OF, strict=True)]
ELEMENT = {"f16": np.float16, "f32": np.float32}


def page_table(seed: int = 0) -> np.ndarray[tuple[int, int], np.dtype[np.uint32]]:
    """[slots, table_stride], pages in no order; two pages belong to nobody."""
    pages = np.random.default_rng(seed).permutation(PAGES)[: SLOTS * TABLE_STRIDE]
    return pages.reshape(SLOTS, TABLE_STRIDE).astype(np.uint32)


@dataclass(kw_only=True)
class QkvCase(Case):
    """k and v are read from their pages, which start as poison; nothing else in them may change."""

    heads: Heads
    kv_type: str
    table: np.ndarray[tuple[int, int], np.dtype[np.uint32]]
    keys: Buffer
    values: Buffer

    def run(self, tokens: Sequence[int]) -> dict[str, Floats]:
        _, num_kv, dim, _ = self.heads
        element = ELEMENT[self.kv_type]
        poison = np.full(PAGES * PAGE_TOKENS * num_kv * dim, POISON, element)
        for buffer in (self.keys, self.values):
            self.bench.gpu.write(buffer, 0, poison)
        found = super().run(tokens)
        places = [(self.table[slot, at // PAGE_TOKENS], at % PAGE_TOKENS) for _, at, slot in self.rows]
        chosen = tuple(np.array([places[t] for t in tokens]).T)
        for name, buffer, read in (("k", self.keys, reference.read_keys), ("v", self.values, reference.read_values)):
            raw = self.bench.gpu.read(buffer, 0, poison.nbytes).view(element)
            pages = read(raw, num_kv, dim)
            found[name] = pages[chosen].reshape(len(list(tokens)), -1).astype(np.float32)
            touched = (pages != element(POISON)).any(axis=(2, 3))
            touched[chosen] = False
            assert not touched.any(), f"{self.name}: {name} is written to places of other tokens"
        return found


def heads_block(bench: Bench, heads: Heads, scale: float = 1.0) -> Buffer:
    num_q, num_kv, dim, rope_dim = heads
    return bench.constants.heads(
        head_dim=dim,
        num_q_heads=num_q,
        num_kv_heads=num_kv,
        rope_dim=rope_dim,
        table_stride=TABLE_STRIDE,
        q_stride=stride(num_q * dim),
        quads=quads(num_q, num_kv),
        scale=scale,
    )


def matrices(
    bench: Bench, blocks: Sequence[str], sizes: Sequence[int], k: int, window_tiles: int
) -> tuple[list[PackedMatrix], Real]:
    """One matrix where q, k and v have one type, else three."""
    if len(blocks) == 1:
        matrix, weights = bench.matrix(blocks[0], sizes, k, window_tiles=window_tiles)
        return [matrix], weights
    parts = [bench.matrix(block, [n], k) for block, n in zip(blocks, sizes, strict=True)]
    return [matrix for matrix, _ in parts], np.concatenate([weights for _, weights in parts])


def qkv_case(
    bench: Bench,
    blocks: Sequence[str],
    heads: Heads,
    k: int,
    *,
    clusters: int,
    kv_type: str,
    bias: bool = False,
    window_tiles: int = 0,
    turned: bool = True,
) -> QkvCase:
    """With turned=False every rotation is by nothing, so that what comes out is what went in."""
    bench.need_subgroups()
    num_q, num_kv, dim, rope_dim = heads
    sizes = [num_q * dim, num_kv * dim, num_kv * dim]
    packed, weights = matrices(bench, blocks, sizes, k, window_tiles)
    normed = normed_input(bench, k)
    bias_buffer, bias_values = some_bias(bench, sum(sizes), bias)
    turns = reference.rope_table(PAGE_TOKENS * TABLE_STRIDE, rope_dim)
    if not turned:
        turns[:] = (1, 0)
    table = page_table()
    page_bytes = PAGES * PAGE_TOKENS * num_kv * dim * np.dtype(ELEMENT[kv_type]).itemsize
    keys, values = bench.gpu.storage("keys", page_bytes), bench.gpu.storage("values", page_bytes)
    q = blank(bench, stride(num_q * dim))
    shared = {
        "heads": heads_block(bench, heads),
        "rope": bench.upload("rope", turns.astype(np.float32)),
        "page_table": bench.upload("page table", table),
    }
    dispatches, first_tile = [], 0
    for matrix in packed:
        dispatches += matmul.qkv(
            bench.context(clusters),
            matrix,
            normed.norm,
            first_tile=first_tile,
            bias=bias_buffer,
            q=q[0],
            keys=keys,
            values=values,
            kv_type=kv_type,
            **shared,
        )
        first_tile += matrix.rows // TILE_ROWS
    whole = reference.linear(weights, normed.value, bias_values)
    truths = split_truth(whole, heads, turns[POSITIONS])
    tolerance = reference.TOLERANCE[blocks[0]] + reference.TOLERANCE["rotation"]
    truths["q"] = widened(truths["q"], stride(num_q * dim))
    if kv_type == "f16":  # its own rounding comes on top; q stays f32
        rounding = reference.TOLERANCE["f16 page"] / tolerance
        for name in ("k", "v"):
            value, size = truths[name]
            truths[name] = Truth(value, size + (np.abs(value) + 1e-4) * rounding)
    return QkvCase(
        bench=bench,
        name=f"qkv_fused {'+'.join(blocks)} heads {heads} {kv_type} clusters {clusters}",
        dispatches=dispatches,
        inputs=normed.inputs,
        outputs={"q": q},
        truth=truths,
        tolerance=tolerance,
        rows=ROWS,
        heads=heads,
        kv_type=kv_type,
        table=table,
        keys=keys,
        values=values,
    )


def split_truth(whole: Truth, heads: Heads, turns: Real) -> dict[str, Truth]:
    """q, k and v [tokens, heads * head_dim] of a product [tokens, rows], q and k rotated."""
    num_q, num_kv, dim, _ = heads
    found = {}
    start = 0
    for name, count in (("q", num_q), ("k", num_kv), ("v", num_kv)):
        part = Truth(*(a[:, start : start + count * dim].reshape(TOKENS, count, dim) for a in whole))
        part = part if name == "v" else reference.rotate(part, turns)
        found[name] = Truth(*(a.reshape(TOKENS, -1) for a in part))
        start += count * dim
    return found

"""Attention's test cases: sequences in shuffled pages, rows that look at them, and the truth in float64. Not a test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from shaders.device import Buffer
from shaders.dispatch import Dispatch
from shaders.ops.attention import attention, quads
from shaders.ops.matmul import stride
from tests.shaders import reference
from tests.shaders.harness import POISON, Bench, Floats, Row, rng_of
from tests.shaders.reference import PAGE_TOKENS, Truth

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


@dataclass
class Case:
    """Sequences' keys and values [tokens, kv_heads, head_dim] by slot, and queries [rows, q_heads, head_dim].

    window and sinks as heads.wgsl has them. Whatever no row of a run reaches is garbage.
    """

    bench: Bench
    kv_type: str
    shared_by: int
    num_kv: int
    dim: int
    window: int = 0
    sinks: int = 0
    rows: Sequence[Row] = field(default_factory=lambda: ROWS)

    def __post_init__(self) -> None:
        rng = rng_of(self.shared_by, self.num_kv, self.dim)
        element = ELEMENT[self.kv_type]
        shape = (self.num_kv, self.dim)
        self.keys = [rng.normal(0, 1, (n, *shape)).astype(element) for n in LENGTHS]
        self.values = [rng.normal(0, 1, (n, *shape)).astype(element) for n in LENGTHS]
        self.q = rng.normal(0, 1.5, (len(self.rows), self.shared_by * self.num_kv, self.dim)).astype(np.float32)
        self.scale = float(np.float32(self.dim**-0.5))
        self.width = self.shared_by * self.num_kv * self.dim
        self.stride = stride(self.width)

    def reached(self, position: int) -> npt.NDArray[np.bool_]:
        """Which tokens up to `position` the row there attends to."""
        tokens = np.arange(position + 1)
        return (tokens < self.sinks) | (tokens > position - (self.window or position + 1))

    def needed(self, slot: int, rows: Sequence[int]) -> npt.NDArray[np.bool_]:
        """Which tokens of a slot any of these rows reaches; all of them without a window."""
        found = np.full(LENGTHS[slot], not self.window)
        for _, at, _ in (self.rows[r] for r in rows if self.rows[r][2] == slot):
            found[: at + 1] |= self.reached(at)
        return found

    def pages(
        self, order: Sequence[int], rows: Sequence[int]
    ) -> tuple[npt.NDArray[np.generic], npt.NDArray[np.generic], Buffer]:
        """Keys and values laid out in pages that are taken in `order`, garbage wherever no token lies."""
        shape = (NUM_PAGES, PAGE_TOKENS, self.num_kv, self.dim)
        keys, values = (np.resize(GARBAGE[self.kv_type], shape) for _ in range(2))
        free = iter(order)
        table = np.full((len(LENGTHS), TABLE_STRIDE), next(free) if self.window else 0xFFFFFFFF, np.uint32)
        for slot, length in enumerate(LENGTHS):
            needed = self.needed(slot, rows)
            for first in range(0, length, PAGE_TOKENS):
                if not needed[first : first + PAGE_TOKENS].any():
                    continue
                page = table[slot, first // PAGE_TOKENS] = next(free)
                here = slice(first, min(first + PAGE_TOKENS, length))
                tokens = np.flatnonzero(needed[here])
                keys[page, tokens] = self.keys[slot][here][tokens]
                values[page, tokens] = self.values[slot][here][tokens]
        return reference.lay_keys(keys), reference.lay_values(values), self.bench.upload("page table", table)

    def dispatch(
        self, order: Sequence[int], subgroups: bool, rows: Sequence[int] | None = None
    ) -> tuple[Dispatch, Buffer, Buffer]:
        """The kernel bound to pages in this order, with the buffers of queries and of results.

        Only what `rows` reach lies there; all rows where nothing is said.
        """
        if subgroups:
            self.bench.need_subgroups()
        keys, values, table = self.pages(order, range(len(self.rows)) if rows is None else rows)
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
            window=self.window,
            sinks=self.sinks,
        )
        q, y = (self.bench.gpu.storage(name, 4 * len(self.rows) * self.stride) for name in ("q", "y"))
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
            windowed=self.window > 0,
        )
        return found, q, y

    def run(self, bound: tuple[Dispatch, Buffer, Buffer], rows: Sequence[int]) -> Floats:
        """[rows, width] of a step that holds only these rows."""
        dispatch, q, y = bound
        queries = np.full(
            (len(self.rows), self.stride), np.nan, np.float32
        )  # what lies beside the heads must not matter
        queries[: len(rows), : self.width] = self.q[list(rows)].reshape(len(rows), -1)
        self.bench.gpu.write(q, 0, queries)
        self.bench.gpu.write(y, 0, np.full(queries.shape, POISON, np.float32))
        self.bench.run([dispatch], [self.rows[r] for r in rows])
        whole = self.bench.floats(y, len(self.rows), self.stride)
        assert (whole[len(rows) :] == POISON).all() and (whole[:, self.width :] == POISON).all()
        return whole[: len(rows), : self.width]

    def truth(self) -> Truth:
        each = [
            reference.attention(
                self.q[r].astype(np.float64),
                self.keys[slot][: at + 1][self.reached(at)].astype(np.float64),
                self.values[slot][: at + 1][self.reached(at)].astype(np.float64),
                self.scale,
            )
            for r, (_, at, slot) in enumerate(self.rows)
        ]
        return Truth(*(np.stack([t[part].reshape(-1) for t in each]) for part in (0, 1)))


def shuffled(seed: int) -> list[int]:
    return np.random.default_rng(seed).permutation(NUM_PAGES).tolist()

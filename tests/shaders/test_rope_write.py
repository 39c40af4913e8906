"""Rotation and the write to pages: rope_write against float64, and qkv_fused's own against rope_write, to the bit."""

from collections.abc import Iterator

import numpy as np
import pytest

from shaders.kernel import KernelCache
from shaders.ops.attention import rope_write
from shaders.ops.matmul import stride
from tests.shaders import reference
from tests.shaders.harness import POISON, Bench, Floats, open_bench, padded, rng_of
from tests.shaders.matmul_cases import TOKENS
from tests.shaders.qkv_cases import (
    ELEMENT,
    HEADS,
    PAGES,
    POSITIONS,
    ROWS,
    TABLE_STRIDE,
    Heads,
    heads_block,
    page_table,
    qkv_case,
)
from tests.shaders.reference import PAGE_TOKENS, TOLERANCE, Truth, assert_close

KV_TYPES = pytest.mark.parametrize("kv_type", ["f16", "f32"])


@pytest.fixture(scope="module")
def bench(kernels: KernelCache) -> Iterator[Bench]:
    with open_bench(kernels) as opened:
        yield opened


def turns_of(rope_dim: int) -> Floats:
    return reference.rope_table(PAGE_TOKENS * TABLE_STRIDE, rope_dim).astype(np.float32)


def write_pages(bench: Bench, heads: Heads, kv_type: str, q: Floats, k: Floats, v: Floats) -> dict[str, Floats]:
    """rope_write on [17, heads * head_dim] each: q turned, and the pages' [17, ...] of k and v."""
    num_q, num_kv, dim, rope_dim = heads
    table = page_table(seed=1)
    element = ELEMENT[kv_type]
    poison = np.full(PAGES * PAGE_TOKENS * num_kv * dim, POISON, element)
    keys, values = bench.upload("keys", poison), bench.upload("values", poison)
    q_buffer = bench.upload("q", padded(q, stride(q.shape[1])))
    dispatch = rope_write(
        bench.kernels,
        step=bench.step,
        heads=heads_block(bench, heads),
        rope=bench.upload("rope", turns_of(rope_dim)),
        page_table=bench.upload("page table", table),
        q=q_buffer,
        k=bench.upload("k", padded(k, stride(k.shape[1]))),
        v=bench.upload("v", padded(v, stride(v.shape[1]))),
        keys=keys,
        values=values,
        pairs=num_q * dim // 2 + num_kv * dim,
        kv_type=kv_type,
    )
    bench.run([dispatch], ROWS)
    found = {"q": bench.floats(q_buffer, TOKENS, stride(q.shape[1]))}
    assert not found["q"][:, q.shape[1] :].any()
    found["q"] = found["q"][:, : q.shape[1]]
    chosen = tuple(np.array([(table[slot, at // PAGE_TOKENS], at % PAGE_TOKENS) for _, at, slot in ROWS]).T)
    for name, buffer, read in (("k", keys, reference.read_keys), ("v", values, reference.read_values)):
        pages = read(bench.gpu.read(buffer, 0, poison.nbytes).view(element), num_kv, dim)
        found[name] = pages[chosen].reshape(TOKENS, -1)
        others = np.ones(pages.shape[:2], bool)
        others[chosen] = False
        assert (pages[others] == element(POISON)).all(), f"{name} is written to places of other tokens"
    return found


def turned(x: Floats, count: int, dim: int, rope_dim: int) -> Truth:
    wide = x.astype(np.float64).reshape(TOKENS, count, dim)
    truth = reference.rotate(Truth(wide, np.abs(wide)), turns_of(rope_dim).astype(np.float64)[POSITIONS])
    return Truth(*(part.reshape(TOKENS, -1) for part in truth))


@KV_TYPES
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_rope_write_is_that_of_float64(bench: Bench, heads: Heads, kv_type: str) -> None:
    num_q, num_kv, dim, rope_dim = heads
    rng = rng_of(heads)
    q = rng.normal(0, 2, (TOKENS, num_q * dim)).astype(np.float32)
    k, v = (rng.normal(0, 2, (TOKENS, num_kv * dim)).astype(np.float32) for _ in range(2))
    got = write_pages(bench, heads, kv_type, q, k, v)
    kept = TOLERANCE["rotation"] + (TOLERANCE["f16 page"] if kv_type == "f16" else 0)
    assert_close(got["q"], turned(q, num_q, dim, rope_dim), TOLERANCE["rotation"], f"q {heads}")
    assert_close(got["k"].astype(np.float32), turned(k, num_kv, dim, rope_dim), kept, f"k {heads} {kv_type}")
    exact = v.astype(np.float64)
    assert_close(got["v"].astype(np.float32), Truth(exact, np.abs(exact)), kept, f"v {heads} {kv_type}")


def test_f32_pages_keep_every_bit(bench: Bench) -> None:
    heads = (2, 2, 40, 8)
    rng = rng_of("bits")
    q, k, v = (rng.normal(0, 1, (TOKENS, 80)).astype(np.float32) for _ in range(3))
    got = write_pages(bench, heads, "f32", q, k, v)
    assert np.array_equal(got["v"], v)
    unturned = np.arange(80) % 40 >= 8
    assert np.array_equal(got["q"][:, unturned], q[:, unturned])
    assert np.array_equal(got["k"][:, unturned], k[:, unturned])


@KV_TYPES
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_qkv_fused_turns_and_writes_as_rope_write_does(bench: Bench, heads: Heads, kv_type: str) -> None:
    num_q, _, dim, _ = heads
    unturned = qkv_case(bench, ["Q4_1"], heads, 96, clusters=1, kv_type="f32", turned=False).run(range(TOKENS))
    fused = qkv_case(bench, ["Q4_1"], heads, 96, clusters=1, kv_type=kv_type).run(range(TOKENS))
    plain = write_pages(bench, heads, kv_type, unturned["q"][:, : num_q * dim], unturned["k"], unturned["v"])
    assert np.array_equal(fused["q"][:, : num_q * dim], plain["q"])
    assert np.array_equal(fused["k"], plain["k"].astype(np.float32))
    assert np.array_equal(fused["v"], plain["v"].astype(np.float32))

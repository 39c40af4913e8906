"""Bias, penalties, bitmask, counts and logprobs on the device against float64.

The expected numbers in data/sampling/penalty_cases.json were made with float64 code that is not ours; `Wish.of` is
checked against them before it judges a kernel.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from shaders.kernel import KernelCache
from tests.shaders.logits_bench import MAX_SAMPLES, POISON, Wish, logits_bench
from tests.shaders.sampling_reference import (
    DATA,
    OFF,
    Logits,
    Params,
    agrees,
    chi_square_z,
    expected_probs,
    softmax,
    vectors,
)

CASES = json.loads((DATA / "sampling" / "penalty_cases.json").read_text())["cases"]
VECTORS = sorted({case["logits"] for case in CASES})
SIZES = [1, 2, 3, 5, 31, 33, 255, 257, 1025, 4099]
INF = float("inf")


def cases_of(vector: str) -> list[dict[str, Any]]:
    return [case for case in CASES if case["logits"] == vector]


def wish_of(params: dict[str, Any]) -> Wish:
    return Wish(
        biases={int(token): bias for token, bias in params.get("logit_bias", {}).items()},
        repetition=params.get("repetition_penalty", 1.0),
        frequency=params.get("frequency_penalty", 0.0),
        presence=params.get("presence_penalty", 0.0),
        prompt_ids=params.get("prompt_ids", ()),
        generated_ids=params.get("generated_ids", ()),
    )


def filters_of(params: dict[str, Any]) -> Params:
    return {name: value for name, value in params.items() if name in OFF}


def random_wish(rng: np.random.Generator, vocab_size: int, **given: Any) -> Wish:
    """All at once, over tokens that overlap."""
    ids = rng.integers(0, vocab_size, 40)
    allowed = rng.random(vocab_size) < 0.7
    allowed[0] = True
    wish: dict[str, Any] = {
        "biases": {int(i): float(rng.uniform(-100, 100)) for i in ids[::3]},
        "repetition": float(rng.choice([0.5, 1.3, 2.0])),
        "frequency": float(rng.uniform(-2, 2)),
        "presence": float(rng.uniform(-2, 2)),
        "prompt_ids": ids[:20].tolist(),
        "generated_ids": ids[10:].tolist() + ids[10:14].tolist(),
        "allowed": allowed,
    }
    return Wish(**wish | given)


@pytest.mark.parametrize("vector", VECTORS)
def test_expected_probs_match_the_recorded_ones(vector: str) -> None:
    for case in cases_of(vector):
        processed = wish_of(case["params"]).of(vectors()[vector])
        probs, near = expected_probs(processed, filters_of(case["params"]))
        size = int((probs > 0).sum())
        assert abs(size - case["n_support"]) <= near, case
        ids = case.get("support_ids") or case["top_ids"]
        np.testing.assert_allclose(probs[ids], case.get("probs") or case["top_probs"], rtol=1e-9)
        assert int(np.nonzero(probs)[0].sum()) == case.get("support_id_sum", sum(ids)), case


@pytest.mark.parametrize("vector", VECTORS)
def test_supports_and_draws_of_the_recorded_cases(kernels: KernelCache, vector: str) -> None:
    logits, cases = vectors()[vector], cases_of(vector)
    wishes = [wish_of(case["params"]) for case in cases]
    filters = [filters_of(case["params"]) for case in cases]
    num_draws = MAX_SAMPLES // len(cases) if len(logits) <= 5000 else 200
    with logits_bench(kernels, logits, wishes) as b:
        processed = b.process()[:, : len(logits)]
        supports = b.supports(filters)
        asked = [
            {"logits_row": row, "seed": 1000 * row + i, "position": i} | dict(filters[row])
            for row in range(len(cases))
            for i in range(num_draws)
        ]
        drawn = b.draw(asked).reshape(len(cases), num_draws)
    for row, wish in enumerate(wishes):
        exact = wish.of(logits)
        np.testing.assert_allclose(processed[row], exact, rtol=1e-6, atol=1e-6)
        probs, near = expected_probs(exact, filters[row])
        assert agrees(supports[row], probs > 0, near), cases[row]["params"]
        assert supports[row][drawn[row]].all(), cases[row]["params"]
        z = chi_square_z(drawn[row], softmax(exact / filters[row].get("temperature", 1.0), supports[row]))
        assert z < 4.8, (cases[row]["params"], z)


@pytest.mark.parametrize("threads", [8, 256])
@pytest.mark.parametrize("vocab_size", SIZES)
def test_processing_of_odd_vocabularies(kernels: KernelCache, vocab_size: int, threads: int) -> None:
    rng = np.random.default_rng(vocab_size)
    rows = rng.normal(0, 5, (4, vocab_size)).astype(np.float32)
    wishes = [random_wish(rng, vocab_size) for _ in range(3)] + [Wish()]
    stride = -(-vocab_size // 4) * 4 + 8
    with logits_bench(kernels, rows, wishes, stride=stride, threads=threads) as b:
        found = b.process()
    for row, wish in enumerate(wishes):
        np.testing.assert_allclose(found[row, :vocab_size], wish.of(rows[row]), rtol=1e-5, atol=1e-4)
    assert (found[:, -(-vocab_size // 4) * 4 :] == POISON).all()


@pytest.mark.parametrize(
    "part",
    [
        {"repetition": 1.0, "frequency": 0.0, "presence": 0.0, "allowed": None},
        {"biases": {}, "frequency": 0.0, "presence": 0.0, "allowed": None},
        {"biases": {}, "repetition": 1.0, "presence": 0.0, "allowed": None},
        {"biases": {}, "repetition": 1.0, "frequency": 0.0, "allowed": None},
        {"biases": {}, "repetition": 1.0, "frequency": 0.0, "presence": 0.0},
    ],
    ids=["bias", "repetition", "frequency", "presence", "bitmask"],
)
def test_each_alone_touches_only_its_tokens(kernels: KernelCache, part: dict[str, Any]) -> None:
    rng = np.random.default_rng(3)
    logits = rng.normal(0, 5, 2000).astype(np.float32)
    wish = random_wish(rng, 2000, **part)
    with logits_bench(kernels, logits, [wish]) as b:
        found = b.process()[0]
    exact = wish.of(logits)
    untouched = exact == logits
    assert 0 < untouched.sum() < 2000
    np.testing.assert_array_equal(found[untouched].view(np.uint32), logits[untouched].view(np.uint32))
    np.testing.assert_allclose(found, exact, rtol=1e-6, atol=1e-5)


def test_as_many_biases_as_there_may_be(kernels: KernelCache) -> None:
    rng = np.random.default_rng(4)
    rows = rng.normal(0, 1, (2, 49152)).astype(np.float32)
    ids = rng.permutation(49152)[:300]
    wishes = [Wish(biases=dict(zip(ids.tolist(), rng.uniform(-100, 100, 300).tolist(), strict=True)))] * 2
    with logits_bench(kernels, rows, wishes) as b:
        found = b.process()
    for row in range(2):
        np.testing.assert_allclose(found[row], wishes[row].of(rows[row]), rtol=1e-6, atol=1e-5)


def test_plain_rows_are_copied_bit_by_bit(kernels: KernelCache) -> None:
    """Whatever the bits: also those that are no numbers."""
    rng = np.random.default_rng(5)
    rows = rng.integers(0, 2**32, (3, 1003), np.uint32).view(np.float32)
    with logits_bench(kernels, rows, [Wish(), random_wish(rng, 1003), Wish()]) as b:
        found = b.process()[:, :1003]
    np.testing.assert_array_equal(found[[0, 2]].view(np.uint32), rows[[0, 2]].view(np.uint32))


def test_the_impossible_stays_so_and_masked_is_impossible(kernels: KernelCache) -> None:
    logits = np.array([-INF, 1.0, 2.0, -INF, 3.0, INF], np.float32)
    allowed = np.array([True, True, False, True, True, False])
    wish = Wish(
        biases={0: 100.0, 2: 100.0},
        repetition=1.5,
        frequency=-2.0,
        prompt_ids=[0, 3],
        generated_ids=[0, 2, 3, 4],
        allowed=allowed,
    )
    with logits_bench(kernels, logits, [wish]) as b:
        np.testing.assert_array_equal(b.process()[0, :6], np.float32([-INF, 1, -INF, -INF, 4, -INF]))
        drawn = b.draw([{"temperature": 50.0, "seed": i, "logits_row": 0} for i in range(100)])
    assert set(drawn.tolist()) == {1, 4}


def test_draws_are_counted_where_asked(kernels: KernelCache) -> None:
    counting = Wish(frequency=0.5, prompt_ids=[3], generated_ids=[5, 5])
    wishes = [counting, Wish(prompt_ids=[3], generated_ids=[5]), counting, Wish(repetition=1.1)]
    with logits_bench(kernels, np.zeros((4, 9), np.float32), wishes) as b:
        b.count([5, 5, 3, 8])
        found = b.count([5, 5, 8, 8])
    in_prompt = 1 << 31
    expected = np.zeros((4, 12), np.uint32)
    expected[0, 3], expected[0, 5] = in_prompt, 4
    expected[1, 3], expected[1, 5] = in_prompt, 1
    expected[2, 3], expected[2, 5], expected[2, 8] = in_prompt + 1, 2, 1
    expected[3, 8] = 2
    np.testing.assert_array_equal(found, expected)


def test_a_forced_token_passes_and_leaves_the_slot(kernels: KernelCache) -> None:
    with logits_bench(kernels, np.eye(3, 9, 3, dtype=np.float32), [Wish()] * 3) as b:
        b.process()
        drawn = b.draw([{"temperature": 0.0, "forced": forced} for forced in (None, 0, 8)])  # type: ignore[dict-item]
        slots = b.gpu.read(b.last_tokens, 0, 12).view(np.uint32)
    assert drawn.tolist() == [3, 0, 8]
    assert slots.tolist() == [3, 0, 0]


def check_logprobs(logits: Logits, token: int, ids: npt.NDArray[np.uint32], logprobs: Logits, count: int) -> None:
    """One record against float64."""
    below = logits.astype(np.float64) - logits.max()
    exact = below - np.log(np.exp(below).sum())
    best = np.argsort(-logits, kind="stable")[:count]
    assert ids[: 1 + len(best)].tolist() == [token, *best.tolist()]
    np.testing.assert_allclose(logprobs[0], exact[token], rtol=1e-6, atol=1e-5)
    np.testing.assert_allclose(logprobs[1 : 1 + len(best)], exact[best], rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("threads", [8, 256])
@pytest.mark.parametrize("vocab_size", [*SIZES, 49152])
def test_logprobs_of_odd_vocabularies(kernels: KernelCache, vocab_size: int, threads: int) -> None:
    rng = np.random.default_rng(vocab_size)
    rows = np.round(rng.normal(0, 5, (4, vocab_size)) * 4).astype(np.float32) / 4  # many ties
    asked = [20, 3, None, 0]
    tokens = rng.integers(0, vocab_size, 4).tolist()
    stride = -(-vocab_size // 4) * 4 + 8
    wishes = [Wish(top_logprobs=count) for count in asked]
    with logits_bench(kernels, rows, wishes, stride=stride, threads=threads) as b:
        ids, logprobs = b.logprobs(tokens)
    for row, count in enumerate(asked):
        if count is None:
            assert not ids[row].any()
            continue
        check_logprobs(rows[row], tokens[row], ids[row], logprobs[row], count)
        assert not ids[row, 1 + min(count, vocab_size) :].any()


@pytest.mark.parametrize("vector", [*VECTORS, "half_neg_inf_256", "one_finite_64"])
def test_logprobs_of_recorded_vectors(kernels: KernelCache, vector: str) -> None:
    logits = vectors()[vector]
    tokens = [int(logits.argmax()), int(logits.argmin()), len(logits) // 2]
    with logits_bench(kernels, logits, [Wish(top_logprobs=20)] * 3) as b:
        ids, logprobs = b.logprobs(tokens)
    for row, token in enumerate(tokens):
        check_logprobs(logits, token, ids[row], logprobs[row], 20)


def test_the_likeliest_may_all_lie_in_one_chunk(kernels: KernelCache) -> None:
    """The kernel keeps one best token for all quads a multiple of 1,024 apart."""
    logits = np.random.default_rng(6).normal(0, 1, 262_144).astype(np.float32)
    together = np.array([4 * (7 + 1024 * i) + i % 4 for i in range(30)])
    logits[together] = 50 - np.arange(30) // 2
    with logits_bench(kernels, logits, [Wish(top_logprobs=20)]) as b:
        ids, logprobs = b.logprobs([5])
    check_logprobs(logits, 5, ids[0], logprobs[0], 20)


@pytest.mark.parametrize("logits", [[float("nan")] * 5, [-INF] * 5, [float("nan"), 1.0, INF, 2.0, -INF]])
def test_logprobs_of_broken_logits_are_no_nan(kernels: KernelCache, logits: list[float]) -> None:
    with logits_bench(kernels, np.array(logits, np.float32), [Wish(top_logprobs=20)]) as b:
        ids, logprobs = b.logprobs([0])
    assert sorted(ids[0, 1:6].tolist()) == [0, 1, 2, 3, 4]
    assert not np.isnan(logprobs[0, :6]).any()


def test_no_row_depends_on_its_company(kernels: KernelCache) -> None:
    rng = np.random.default_rng(7)
    rows = rng.normal(0, 3, (8, 3001)).astype(np.float32)
    wishes = [random_wish(rng, 3001, top_logprobs=5) for _ in range(8)]
    with logits_bench(kernels, rows, wishes) as b:
        together = b.process(), *b.logprobs(range(8))
    for row in (0, 7):
        with logits_bench(kernels, rows[row], [wishes[row]]) as b:
            alone = b.process(), *b.logprobs([row])
        for one, of_many in zip(alone, together, strict=True):
            np.testing.assert_array_equal(one[0].view(np.uint32), of_many[row].view(np.uint32))

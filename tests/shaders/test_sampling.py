"""The sampler against float64: which tokens it may draw, exactly, and how often it draws them.

The expected numbers in data/sampling were made with float64 code that is not ours; `expected_probs` is checked
against them before it judges the kernel. Each case's draws are the samples of one dispatch.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import pytest

from shaders.device import Gpu
from shaders.errors import BindingError
from shaders.kernel import Bound, KernelCache
from shaders.ops.sampling import bind_sampler, bind_support, vocab_shape
from shaders.step_table import StepTable
from tests.shaders.sampling_reference import (
    DATA,
    OFF,
    Logits,
    agrees,
    chi_square_z,
    expected_probs,
    softmax,
    vectors,
)

MAX_SAMPLES = 2000
CASES = json.loads((DATA / "sampling" / "cases.json").read_text())["cases"]
VECTORS = sorted({case["logits"] for case in CASES})
NAN, INF = float("nan"), float("inf")


class Bench:
    """The buffers of one set of logits, and both kernels bound to them."""

    def __init__(self, kernels: KernelCache, rows: Logits, stride: int, threads: int | None) -> None:
        self.gpu = kernels.gpu
        self.vocab_size = rows.shape[1]
        self.words = -(-self.vocab_size // 32)
        padded = np.full((len(rows), stride), 1e30, np.float32)  # what lies beyond the vocabulary must not matter
        padded[:, : self.vocab_size] = rows
        self.table = StepTable(1, MAX_SAMPLES)
        self.step = self.gpu.storage("step", self.table.data.nbytes)
        self.logits = self.gpu.upload("logits", padded)
        self.vocab = vocab_shape(self.gpu, self.vocab_size, stride)
        self.last_tokens = self.gpu.storage("last_tokens", 4 * MAX_SAMPLES)
        self.tokens = self.gpu.storage("tokens", 4 * MAX_SAMPLES)
        self.bitmask = self.gpu.storage("bitmask", 4 * 64 * self.words)
        inputs = {"step": self.step, "vocab_shape": self.vocab, "logits": self.logits}
        self.sampler = bind_sampler(
            kernels, **inputs, last_tokens=self.last_tokens, tokens=self.tokens, threads=threads
        )
        self.support = bind_support(kernels, **inputs, bitmask=self.bitmask, threads=threads)

    def close(self) -> None:
        self.gpu.release([self.step, self.logits, self.vocab, self.last_tokens, self.tokens, self.bitmask])

    def _run(self, bound: Bound, samples: list[dict[str, float]]) -> None:
        self.table.begin(1, len(samples))
        for index, given in enumerate(samples):
            sample = {"row": 0, "slot": index, "position": 0, "seed": 1, "logits_row": 0} | OFF | given
            self.table.set_sample(index, **sample)
        self.gpu.write(self.step, 0, self.table.data[: self.table.bytes_used])
        encoder = self.gpu.device.create_command_encoder()
        compute = encoder.begin_compute_pass()
        compute.set_pipeline(bound.kernel.pipeline)
        compute.set_bind_group(0, bound.group)
        compute.dispatch_workgroups(len(samples))
        compute.end()
        self.gpu.device.queue.submit([encoder.finish()])

    def draw(self, samples: list[dict[str, float]]) -> npt.NDArray[np.int64]:
        self._run(self.sampler, samples)
        return self.gpu.read(self.tokens, 0, 4 * len(samples)).view(np.uint32).astype(np.int64)

    def supports(self, samples: list[dict[str, float]]) -> npt.NDArray[np.bool_]:
        """[samples, vocab_size]"""
        self._run(self.support, samples)
        bits = self.gpu.read(self.bitmask, 0, 4 * len(samples) * self.words).reshape(len(samples), -1)
        return np.unpackbits(bits, axis=1, bitorder="little")[:, : self.vocab_size].astype(bool)


@contextmanager
def bench(kernels: KernelCache, rows: Logits, stride: int = 0, threads: int | None = None) -> Iterator[Bench]:
    rows = np.atleast_2d(rows)
    opened = Bench(kernels, rows, stride or -(-rows.shape[1] // 4) * 4, threads)
    try:
        yield opened
    finally:
        opened.close()


def cases_of(vector: str) -> list[dict[str, object]]:
    return [case for case in CASES if case["logits"] == vector]


@pytest.mark.parametrize("vector", VECTORS)
def test_expected_probs_match_the_recorded_ones(vector: str) -> None:
    for case in cases_of(vector):
        probs, near = expected_probs(vectors()[vector], case["params"])
        size = int((probs > 0).sum())
        assert abs(size - case["n_support"]) <= near, case
        ids = case.get("support_ids") or case["top_ids"]
        recorded = case.get("probs") or case["top_probs"]
        np.testing.assert_allclose(probs[ids], recorded, rtol=1e-9 if size == case["n_support"] else 0.2)
        if size == case["n_support"] and "support_id_sum" in case:
            assert int(np.nonzero(probs)[0].sum()) == case["support_id_sum"], case


@pytest.mark.parametrize("threads", [8, 256])
@pytest.mark.parametrize("vector", VECTORS)
def test_support_is_that_of_float64(kernels: KernelCache, vector: str, threads: int) -> None:
    cases = cases_of(vector)
    with bench(kernels, vectors()[vector], threads=threads) as b:
        got = b.supports([case["params"] for case in cases])
    for case, kept in zip(cases, got, strict=True):
        probs, near = expected_probs(vectors()[vector], case["params"])
        assert agrees(kept, probs > 0, near), (case["params"], int(kept.sum()), case["n_support"])


@pytest.mark.parametrize("vector", VECTORS)
def test_draws_follow_the_probabilities(kernels: KernelCache, vector: str) -> None:
    logits = vectors()[vector]
    cases = cases_of(vector)
    with bench(kernels, logits) as b:
        supports = b.supports([case["params"] for case in cases])
        for number, (case, kept) in enumerate(zip(cases, supports, strict=True)):
            num_draws = 50 if case["n_support"] == 1 else MAX_SAMPLES if len(logits) <= 1024 else 200
            drawn = b.draw([case["params"] | {"seed": 1000 * number + i, "position": i} for i in range(num_draws)])
            probs, near = expected_probs(logits, case["params"])
            assert agrees(kept, probs > 0, near), case["params"]
            assert kept[drawn].all(), case["params"]
            temperature = case["params"].get("temperature", 1.0) or 1.0
            z = chi_square_z(drawn, softmax(logits / np.float64(temperature), kept))
            assert z < 4.8, (case["params"], z)


def test_draws_hardly_depend_on_the_number_of_threads(kernels: KernelCache) -> None:
    logits = np.random.default_rng(9).normal(0, 2, 5000).astype(np.float32)
    filters = [{"temperature": 0.0}, {}, {"top_k": 40}, {"top_p": 0.9}]
    samples = [filters[i % 4] | {"seed": i} for i in range(200)]
    drawn = []
    for threads in (16, 256):
        with bench(kernels, logits, threads=threads) as b:
            drawn.append(b.draw(samples))
    assert (drawn[0] != drawn[1]).sum() <= 1


@pytest.mark.parametrize("vocab_size", [1, 2, 3, 5, 31, 33, 255, 257, 1025, 4099])
def test_odd_vocabularies_and_padded_rows(kernels: KernelCache, vocab_size: int) -> None:
    rng = np.random.default_rng(vocab_size)
    rows = rng.normal(0, 2, (3, vocab_size)).astype(np.float32)
    filters = [{"temperature": 0.0}, {}, {"top_k": 3}, {"top_p": 0.7}, {"min_p": 0.1}, {"top_k": 9, "top_p": 0.8}]
    samples = [f | {"logits_row": row} for row in range(3) for f in filters]
    with bench(kernels, rows, stride=-(-vocab_size // 4) * 4 + 8) as b:
        got = b.supports(samples)
        drawn = b.draw(samples)
    for sample, kept, token in zip(samples, got, drawn, strict=True):
        probs, near = expected_probs(rows[int(sample["logits_row"])], {k: v for k, v in sample.items() if k in OFF})
        assert agrees(kept, probs > 0, near), sample
        assert kept[token], sample


def test_support_of_random_parameters_with_many_ties(kernels: KernelCache) -> None:
    rng = np.random.default_rng(5)
    rows = (np.round(rng.normal(0, 3, (8, 777)) * 4) / 4).astype(np.float32)
    samples = [
        {
            "temperature": float(rng.uniform(0.2, 2)),
            "top_k": int(rng.integers(0, 200)),
            "top_p": float(rng.uniform(0.01, 1)),
            "min_p": float(rng.uniform(0, 0.2)) * int(rng.integers(0, 2)),
            "logits_row": i % 8,
        }
        for i in range(64)
    ]
    with bench(kernels, rows) as b:
        got = b.supports(samples)
    for sample, kept in zip(samples, got, strict=True):
        probs, near = expected_probs(rows[int(sample["logits_row"])], {k: v for k, v in sample.items() if k in OFF})
        assert agrees(kept, probs > 0, near), sample


def test_large_vocabulary(kernels: KernelCache) -> None:
    logits = np.random.default_rng(6).normal(0, 3, 262_144).astype(np.float32)
    samples = [{"temperature": 0.0}, {"top_k": 50}, {"top_p": 0.9}, {"top_p": 0.2, "temperature": 0.8}, {"min_p": 0.02}]
    with bench(kernels, logits) as b:
        got = b.supports(samples)
    for sample, kept in zip(samples, got, strict=True):
        probs, near = expected_probs(logits, sample)
        assert agrees(kept, probs > 0, near), (sample, int(kept.sum()), int((probs > 0).sum()))


@pytest.mark.parametrize(
    ("logits", "token"),
    [
        ([NAN, 1.0, 2.0, NAN, 2.0], 2),
        ([NAN] * 5, 0),
        ([-INF] * 5, 0),
        ([NAN, -INF, NAN, -INF], 0),
        ([-NAN, -INF, -3.0], 2),
        ([1.0, INF, 3e38, INF], 1),
        ([-1.0, -0.0, 0.0], 1),
        ([-1.0, 0.0, -0.0], 1),
        ([-1e-45, -1e-40, -1.0], 0),
        ([1e-45, 3e-45, 0.0], 1),
        ([-3e38, -2e38, -3.4e38, -3e38, -3e38], 1),
    ],
)
def test_greedy_is_the_exact_argmax(kernels: KernelCache, logits: list[float], token: int) -> None:
    with bench(kernels, np.array(logits, np.float32)) as b:
        assert b.draw([{"temperature": 0.0}]).tolist() == [token]


def test_greedy_takes_the_lowest_id_wherever_equals_lie(kernels: KernelCache) -> None:
    rng = np.random.default_rng(7)
    rows = rng.integers(-3, 4, (64, 5000)).astype(np.float32)
    with bench(kernels, rows) as b:
        drawn = b.draw([{"temperature": 0.0, "logits_row": i} for i in range(64)])
    assert drawn.tolist() == rows.argmax(1).tolist()


@pytest.mark.parametrize(
    "logits", [[NAN] * 9, [-INF] * 9, [NAN, 1.0, -INF, 1.0], [INF, 0.0, NAN, INF, 1.0], [3e38, -3e38, NAN]]
)
def test_broken_logits_still_give_a_token_that_exists(kernels: KernelCache, logits: list[float]) -> None:
    vector = np.array(logits, np.float32)
    best = vector == np.nanmax(np.nan_to_num(vector, nan=-INF, posinf=INF, neginf=-INF))
    right = set(np.nonzero(best)[0].tolist()) if np.nanmax(vector, initial=-INF) > -INF else {0}
    filters = [{}, {"top_k": 2}, {"top_p": 0.9}, {"top_k": 3, "top_p": 0.5, "min_p": 0.1}, {"temperature": 1e-40}]
    with bench(kernels, vector) as b:
        drawn = b.draw([f | {"seed": i} for f in filters for i in range(20)])
    assert set(drawn.tolist()) <= right


def test_what_is_impossible_stays_so_at_any_temperature(kernels: KernelCache) -> None:
    with bench(kernels, np.array([NAN, 1.0, -INF, 2.0, -INF, 3.0], np.float32)) as b:
        drawn = b.draw([{"temperature": 1e37, "top_p": top_p, "seed": i} for i in range(30) for top_p in (1.0, 0.99)])
    assert set(drawn.tolist()) == {1, 3, 5}


def test_draws_do_not_depend_on_company(kernels: KernelCache) -> None:
    logits = np.random.default_rng(8).normal(0, 1, 1000).astype(np.float32)
    filters = [{}, {"top_k": 40}, {"top_p": 0.9}, {"temperature": 0.0}]
    batch = [filters[i % 4] | {"seed": (i << 33) + 5, "position": 7 * i} for i in range(64)]
    with bench(kernels, logits) as b:
        together = b.draw(batch).tolist()
        assert b.draw(batch[::-1]).tolist() == together[::-1]
        assert [b.draw([sample])[0] for sample in batch[:8]] == together[:8]


def test_seeds_and_positions_are_all_told_apart(kernels: KernelCache) -> None:
    with bench(kernels, np.zeros(1000, np.float32)) as b:
        drawn = b.draw([{"seed": seed << 30, "position": position} for seed in range(8) for position in range(8)])
    assert len(set(drawn.tolist())) > 50


@pytest.mark.parametrize("walk", ["seed", "high seed", "position"])
def test_successive_draws_are_independent(kernels: KernelCache, walk: str) -> None:
    change = {"seed": ("seed", 1), "high seed": ("seed", 1 << 32), "position": ("position", 1)}[walk]
    with bench(kernels, np.zeros(12, np.float32)) as b:
        drawn = np.concatenate(
            [b.draw([{change[0]: change[1] * (2000 * part + i)} for i in range(2000)]) for part in range(3)]
        )
    assert chi_square_z(drawn, np.full(12, 1 / 12)) < 4.8
    for apart in (1, 2, 16):
        assert chi_square_z(drawn[:-apart] * 12 + drawn[apart:], np.full(144, 1 / 144)) < 4.8, apart


def test_rare_tokens_come_as_often_as_they_should(kernels: KernelCache) -> None:
    vocab_size, share, num_draws = 131_072, 0.2, 1000  # 1.5e-6 for each of the rare
    logits = np.full(vocab_size, np.log(share / (vocab_size - 1)), np.float32)
    logits[500] = np.log(1 - share)
    with bench(kernels, logits) as b:
        drawn = b.draw([{"seed": 77, "position": i} for i in range(num_draws)])
    rare = drawn[drawn != 500]
    assert abs(len(rare) - share * num_draws) < 4.9 * (num_draws * share * (1 - share)) ** 0.5
    assert chi_square_z(rare * 10 // vocab_size, np.full(10, 0.1)) < 4.8


def test_equal_tokens_of_a_large_vocabulary_share_evenly(kernels: KernelCache) -> None:
    with bench(kernels, np.zeros(262_144, np.float32)) as b:
        drawn = b.draw([{"seed": i} for i in range(500)])
    assert chi_square_z(drawn >> 13, np.full(32, 1 / 32)) < 4.8  # equal noise would favour low ids
    assert chi_square_z(drawn & 15, np.full(16, 1 / 16)) < 4.8


def test_writes_each_slot_and_sample(kernels: KernelCache) -> None:
    rows = np.eye(4, 9, 3, dtype=np.float32)
    with bench(kernels, rows) as b:
        drawn = b.draw([{"temperature": 0.0, "logits_row": i, "slot": 11 - 3 * i} for i in range(4)])
        slots = b.gpu.read(b.last_tokens, 0, 48).view(np.uint32)
    assert drawn.tolist() == [3, 4, 5, 6]
    assert slots.tolist() == [0, 0, 6, 0, 0, 5, 0, 0, 4, 0, 0, 3]


def test_refuses_rows_that_it_cannot_read(gpu: Gpu) -> None:
    for vocab_size, stride in ((10, 10), (10, 8), (0, 4)):
        with pytest.raises(BindingError, match="multiple of 4"):
            vocab_shape(gpu, vocab_size, stride)

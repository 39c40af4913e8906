"""A tiny Llama in four file types against logits of the same weights in float32, with both kernel sets."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file

from models.gguf import open_gguf
from tests.numpy_model import NumpyModel

TINY = Path(__file__).parents[2] / "data" / "gguf_llama"
SEQUENCES = ("seq0", "seq1", "seq2")
BOUND = 2e-3
CLOSE = 0.1


def golden_of(kind: str, name: str) -> dict:
    sequences = json.loads((TINY / "golden.json").read_text(encoding="utf-8"))["files"][kind]["sequences"]
    return next(sequence for sequence in sequences if sequence["name"] == name)


@pytest.fixture(scope="module", params=["fused", "plain"])
def kernels(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module", params=["F16", "BF16", "Q8_0", "Q4_0"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def logits_of(kind: str, kernels: str, model_of: Callable, rows_of: Callable) -> Iterator[Callable]:
    """logits_of(ids): float32 [tokens, vocab] of this file with this kernel set."""
    model = model_of(TINY / f"tiny-{kind}.gguf", kernels=kernels)
    yield lambda ids: rows_of(model, ids)


@pytest.mark.parametrize("name", SEQUENCES)
def test_golden_logits(name: str, kind: str, logits_of: Callable[[list[int]], npt.NDArray[np.float32]]) -> None:
    expected = load_file(TINY / f"tiny-{kind}.golden.safetensors")
    logits = logits_of(golden_of(kind, name)["ids"])[expected[f"{name}.positions"]]
    np.testing.assert_allclose(logits, expected[f"{name}.logits_f32dequant"], atol=BOUND, rtol=0)


def test_logits_after_every_token(kind: str, logits_of: Callable[[list[int]], npt.NDArray[np.float32]]) -> None:
    ids = golden_of(kind, "seq2")["ids"]
    with open_gguf(TINY / f"tiny-{kind}.gguf") as gguf:
        expected = NumpyModel(gguf).logits(ids)
    np.testing.assert_allclose(logits_of(ids), expected, atol=BOUND, rtol=0)


@pytest.mark.parametrize("name", SEQUENCES)
def test_golden_tokens(name: str, kind: str, logits_of: Callable[[list[int]], npt.NDArray[np.float32]]) -> None:
    golden = golden_of(kind, name)
    greedy = golden["greedy_f32dequant"]
    likeliest = logits_of(golden["ids"] + greedy[:-1])[-len(greedy) :].argmax(axis=1)
    clear = np.array(golden["margins_f32dequant"]) > CLOSE
    np.testing.assert_array_equal(likeliest[clear], np.array(greedy)[clear])


def test_kept_in_half_precision(kind: str, model_of: Callable, rows_of: Callable) -> None:
    expected = load_file(TINY / f"tiny-{kind}.golden.safetensors")
    model = model_of(TINY / f"tiny-{kind}.gguf", kv_type="f16")
    logits = rows_of(model, golden_of(kind, "seq2")["ids"])[expected["seq2.positions"]]
    np.testing.assert_allclose(logits, expected["seq2.logits_f32dequant"], atol=0.1, rtol=0)

"""Llamas of odd shapes and mixed block types on the device against float64, and which stages the planner fused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import engine.loader
import shaders.packing
from models.gguf import open_gguf
from models.plan import Plan
from shaders.device import Gpu, open_gpu
from tests.engine.gpu.conftest import load_quietly, table_of
from tests.numpy_model import NumpyModel
from tests.random_llama import Shape, write_llama

NUM_STAGES = 8
"""Embedding, three for each of two layers, head."""

# Shape, stages that are fused, norms prepared on their own because a plain stage wrote the residual.
SHAPES = {
    "F32": (Shape(), 8, 0),
    "Q4_1": (Shape(type="Q4_1"), 8, 0),
    "untied, odd vocabulary": (Shape(tied=False, vocab_size=517, type="Q4_1", types={"head": "Q8_0"}), 8, 0),
    "three tokens, one head": (Shape(vocab_size=3, num_q_heads=1, num_kv_heads=1, head_dim=64), 8, 0),
    "hidden 96, some biases": (Shape(hidden=96, type="Q4_1", biases=("k",)), 8, 0),
    "hidden 160": (Shape(hidden=160, intermediate=96, type="Q4_0"), 8, 0),
    "hidden 72": (Shape(hidden=72, intermediate=136), 8, 0),
    "hidden and heads of 72": (Shape(hidden=72, intermediate=136, head_dim=72, type="F16"), 8, 0),
    "a kv head for each, scaled": (Shape(num_q_heads=4, num_kv_heads=4, rope_scale=4.0), 8, 0),
    "three to a kv head": (Shape(num_q_heads=9, num_kv_heads=3, type="Q4_1"), 8, 0),
    "seven to a kv head": (Shape(num_q_heads=7, num_kv_heads=1), 8, 0),
    "eight to a kv head": (Shape(num_q_heads=16, num_kv_heads=2, head_dim=16), 8, 0),
    "heads of 8": (Shape(head_dim=8, num_q_heads=6, num_kv_heads=2), 8, 0),
    "heads of 80": (Shape(head_dim=80, type="Q8_0"), 8, 0),
    "heads of 128": (Shape(head_dim=128, type="Q4_0"), 8, 0),
    "heads of 256": (Shape(head_dim=256, num_q_heads=2, num_kv_heads=1, type="BF16"), 8, 0),
    "biases": (Shape(biases=("q", "k", "v", "output")), 8, 0),
    "part of a head rotated": (Shape(rope_dim=12), 8, 0),
    "frequency factors": (Shape(rope_factors=True, rope_scale=2.0, rope_dim=24), 8, 0),
    "v of another type": (Shape(type="Q4_1", types={"v": "Q8_0", "down": "F16"}), 8, 0),
    "three types and biases": (Shape(types={"q": "Q4_0", "k": "BF16"}, biases=("q", "v")), 8, 0),
    "types that part inside a tile": (Shape(head_dim=40, num_kv_heads=1, types={"v": "F16"}), 6, 0),
    "gate unlike up": (Shape(type="Q8_0", types={"up": "Q4_0"}), 6, 2),
    "both unlike": (Shape(head_dim=40, num_kv_heads=1, types={"v": "F16", "up": "BF16"}), 4, 1),
    "mlp of odd rows": (Shape(intermediate=100), 6, 2),
}
PLAIN_TOO = (
    "F32",
    "Q4_1",
    "untied, odd vocabulary",
    "hidden and heads of 72",
    "seven to a kv head",
    "heads of 256",
    "biases",
    "frequency factors",
    "mlp of odd rows",
)
"""Plain kernels have fewer ways to be put together, and take long to compile on a software adapter."""

BOUND = 2e-4
"""These logits reach 8 and come out within 2e-5 on a software adapter."""


def plan_of(model) -> Plan:
    return table_of(model)._runner._plan


def check_against_numpy(path: Path, kernels: str | None, rows_of: Callable) -> Plan:
    """A chunk of two tiles and a rest, and the tokens behind it; the model is closed again."""
    with open_gguf(path) as gguf:
        truth = NumpyModel(gguf)
        vocab_size = truth.model.config.vocab_size
        ids = np.random.default_rng(7).integers(0, vocab_size, 37).tolist()
        expected = truth.logits(ids)
    model = load_quietly(path, kernels=kernels)
    try:
        logits = rows_of(model, ids)
        first = rows_of(model, ids[:1])
        plan = plan_of(model)
    finally:
        model.table.close()
    np.testing.assert_allclose(logits, expected, atol=BOUND, rtol=0)
    np.testing.assert_allclose(first, expected[:1], atol=BOUND, rtol=0)
    return plan


@pytest.mark.parametrize("name", SHAPES)
def test_fused(name: str, tmp_path: Path, rows_of: Callable) -> None:
    shape, fused, prepared = SHAPES[name]
    plan = check_against_numpy(write_llama(tmp_path / "random.gguf", shape), "fused", rows_of)
    assert (plan.fused, plan.plain) == (fused, NUM_STAGES - fused)
    kernel_names = [dispatch.single.kernel.name for dispatch in plan.layers + plan.head]
    assert kernel_names.count("norm_prepare.wgsl") == prepared


@pytest.mark.parametrize("name", PLAIN_TOO)
def test_plain(name: str, tmp_path: Path, rows_of: Callable) -> None:
    plan = check_against_numpy(write_llama(tmp_path / "random.gguf", SHAPES[name][0]), "plain", rows_of)
    assert (plan.fused, plan.plain) == (0, NUM_STAGES)


# On a device that binds few KiB at a time, a head of four windows or of two.
WINDOWED = {
    "F32-fused": ("fused", 256, 4, Shape(hidden=256, vocab_size=1001, intermediate=480, head_dim=64)),
    "F32-plain": ("plain", 256, 4, Shape(hidden=256, vocab_size=1001, intermediate=480, head_dim=64)),
    "Q4_1-fused": ("fused", 512, 2, Shape(hidden=1024, vocab_size=2001, intermediate=992, type="Q4_1")),
}


@pytest.mark.parametrize("case", WINDOWED)
def test_matrices_in_windows(case: str, tmp_path: Path, rows_of: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels, binding_kib, num_windows, shape = WINDOWED[case]

    def narrow(name: str | None) -> Gpu:
        gpu = open_gpu(name)
        gpu.limits["max-storage-buffer-binding-size"] = binding_kib << 10
        return gpu

    monkeypatch.setattr(engine.loader, "open_gpu", narrow)
    monkeypatch.setattr(shaders.packing, "STAGING_BYTES", 64 << 10)
    plan = check_against_numpy(write_llama(tmp_path / "wide.gguf", shape), kernels, rows_of)
    heads = [dispatch for dispatch in plan.head if dispatch.single.kernel.name in ("head_fused.wgsl", "linear.wgsl")]
    assert len(heads) == num_windows

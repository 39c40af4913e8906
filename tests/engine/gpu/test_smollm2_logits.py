"""SmolLM2's logits after six prompts against those of float32 weights, and one kernel set against the other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

PROMPTS = ("chat", "plain", "code", "unicode", "long", "repeat")
BOUNDS = {"f32": 2e-3, "f16": 0.1}
"""Kept keys and values in f16 alone move these logits by some hundredths."""


@pytest.mark.parametrize("kv_type", BOUNDS)
@pytest.mark.parametrize("name", PROMPTS)
def test_last_logits(name: str, kv_type: str, goldens: dict, scored: Callable) -> None:
    golden, bound = goldens[name], BOUNDS[kv_type]
    logits = scored(name, kv_type)[0]
    np.testing.assert_allclose(logits[golden.top_ids], golden.top_logits, atol=bound, rtol=0)
    if golden.last_logits is not None:
        np.testing.assert_allclose(logits, golden.last_logits, atol=bound, rtol=0)
    wide = logits.astype(np.float64)
    logsumexp = wide.max() + np.log(np.exp(wide - wide.max()).sum())
    assert abs(logsumexp - golden.logsumexp) <= bound


def test_kernel_sets_agree(goldens: dict, starter_path: Path, model_of: Callable, rows_of: Callable) -> None:
    prompts = [goldens["plain"].ids[:9], goldens["code"].ids[:8]]
    plain, fused = model_of(starter_path, kernels="plain"), model_of(starter_path)
    for ids in prompts:
        np.testing.assert_allclose(rows_of(plain, ids), rows_of(fused, ids), atol=1e-3, rtol=0)


def test_scoring_a_whole_prompt(goldens: dict, starter_path: Path, model_of: Callable, rows_of: Callable) -> None:
    """score() cuts its chunks elsewhere and computes all logits; those after the last token are the golden ones."""
    golden = goldens["repeat"]
    logits = rows_of(model_of(starter_path), golden.ids)
    assert logits.shape[0] == len(golden.ids) > 64
    np.testing.assert_allclose(logits[-1, golden.top_ids], golden.top_logits, atol=BOUNDS["f32"], rtol=0)

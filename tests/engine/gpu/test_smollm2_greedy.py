"""SmolLM2's greedy continuations: with the golden tokens fed to it, and left to itself through the whole engine."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from engine.generate import load_blocking, stream
from engine.loader import load_model
from engine.loading import LoadOptions, LoadProgress
from engine.request import Delta, Request
from engine.threaded import ThreadedEngine

CLOSE = 0.1
"""Two tokens whose logits are no further apart may change places."""


@pytest.mark.parametrize("kv_type", ["f32", "f16"])
@pytest.mark.parametrize("name", ["chat", "plain", "code", "unicode", "long", "repeat"])
def test_likeliest_token_after_each_golden_one(name: str, kv_type: str, goldens: dict, scored: Callable) -> None:
    golden = goldens[name]
    likeliest = scored(name, kv_type).argmax(axis=1)
    clear = np.array(golden.margins) > CLOSE
    assert clear.sum() >= 40
    np.testing.assert_array_equal(likeliest[clear], np.array(golden.greedy)[clear])


def test_left_to_itself(goldens: dict, starter_path: Path) -> None:
    """Five prompts at once, after a load as an app does it; "long" would take as long as the others together."""
    names = ["chat", "plain", "code", "unicode", "repeat"]
    progress: list[LoadProgress] = []
    engine = ThreadedEngine(load_model)
    try:
        load_blocking(engine, LoadOptions(model=starter_path, context=1024), progress.append)
        requests = [
            Request(request_id=name, prompt_ids=tuple(goldens[name].ids), max_tokens=48, ignore_eos=True)
            for name in names
        ]
        with ThreadPoolExecutor(len(requests)) as pool:
            answers = list(pool.map(lambda request: list(stream(engine, request)), requests))
    finally:
        engine.shutdown()
    for name, deltas in zip(names, answers, strict=True):
        check_answer(goldens[name], deltas)
    check_progress(progress)


def check_answer(golden, deltas: list[Delta]) -> None:
    last = deltas[-1]
    tokens = [token for delta in deltas for token in delta.token_ids]
    assert (last.finish_reason, last.error) == ("length", None)
    assert last.usage is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens, len(tokens)) == (len(golden.ids), 48, 48)
    parting = next((step for step, token in enumerate(tokens) if token != golden.greedy[step]), None)
    assert parting is None or golden.margins[parting] <= CLOSE, f"{golden.name} leaves the golden text at {parting}"


def check_progress(progress: list[LoadProgress]) -> None:
    """Bytes only grow, and the last word is that all are there."""
    stages = list(dict.fromkeys(event.stage for event in progress))
    assert stages == ["Reading", "Loading weights", "Preparing kernels"]
    loading = [event for event in progress if event.stage != "Reading"]
    done = [event.done_bytes for event in loading]
    assert done == sorted(done)
    assert len({event.total_bytes for event in loading}) == 1
    assert done[-1] == loading[-1].total_bytes
    assert len(set(done)) > 20

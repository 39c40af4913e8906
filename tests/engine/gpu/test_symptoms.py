"""What went wrong in serving engines before, each by its symptom: what takes real kernels to see."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import engine.loader
import shaders.packing
from engine.engine import Engine
from engine.function_table import Row, Sample
from engine.gpu_logits import mask_bytes
from engine.loading import LoadedModel
from engine.request import GREEDY, FinishReason, Request, SamplingParams, TokenLogprobs
from shaders.device import Gpu, open_gpu
from tests.engine.gpu.conftest import DATA, load_quietly, table_of
from tests.random_llama import Shape, write_llama

TINY = DATA / "gguf_llama" / "tiny-Q8_0.gguf"
PROMPT = [7, 300, 12, 12, 250, 99, 41, 7, 180, 23, 64, 5]
SHADERS = Path(shaders.__file__).parent / "wgsl"


class Answer:
    """One request's answer from an engine of its own, or from the given one."""

    def __init__(self, model: LoadedModel, prompt: Sequence[int], *, core: Engine | None = None, **options) -> None:
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.reason: FinishReason | None = None
        self.num_cached = 0
        core = core or Engine(model.table, model.tokenizer)
        core.add_request(Request(request_id="a", prompt_ids=tuple(prompt), **options))
        while core.has_work:
            core.step()
            for emission in core.take_outbox():
                assert emission.error is None
                self.tokens += emission.token_ids
                self.logprobs += emission.logprobs
                self.reason = emission.finish_reason or self.reason
                if emission.usage is not None:
                    self.num_cached = emission.usage.cached_tokens


@pytest.fixture(scope="module")
def tiny(model_of: Callable) -> LoadedModel:
    return model_of(TINY)


@pytest.mark.parametrize("prefix", [{}, {"logit_bias": ((9, 30.0),), "repetition_penalty": 1.5}])
def test_greedy_logprobs_are_those_of_the_models_own_distribution_and_not_zero_or_a_floor(
    tiny: LoadedModel, rows_of: Callable, prefix: dict
) -> None:
    params = SamplingParams(temperature=0.0, **prefix)
    answer = Answer(tiny, PROMPT, sampling=params, max_tokens=16, ignore_eos=True, logprobs=20)
    logits = rows_of(tiny, [*PROMPT, *answer.tokens])[len(PROMPT) - 1 : -1].astype(np.float64)
    exact = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    assert [entry.token for entry in answer.logprobs] == answer.tokens
    for entry, row in zip(answer.logprobs, exact, strict=True):
        assert abs(entry.logprob - row[entry.token]) < 1e-4
        assert len(entry.top) == 20
        np.testing.assert_allclose([value for _, value in entry.top], np.sort(row)[::-1][:20], atol=1e-4)
    assert max(entry.logprob for entry in answer.logprobs) < -1e-3
    assert min(value for entry in answer.logprobs for _, value in entry.top) > -20


@pytest.mark.parametrize("vocab_size", [257, 290, 299])
def test_no_token_beyond_the_vocabulary_is_drawn_whatever_a_mask_says_of_the_padding(
    tmp_path: Path, vocab_size: int
) -> None:
    """The head's rows are padded with zeros, and a mask's last word with bits; here all that is real is unlikely."""
    model = load_quietly(write_llama(tmp_path / "odd.gguf", Shape(vocab_size=vocab_size)))
    try:
        table = model.table
        table.set_pages(0, 0, [0])
        bias = tuple((token, -100.0) for token in range(vocab_size))
        for position, params in enumerate([GREEDY, SamplingParams(temperature=2.0), SamplingParams(top_p=0.9)] * 3):
            masked = {"bitmask": b"\xff" * mask_bytes(vocab_size)} if position > 2 else {}
            biased = replace(params, logit_bias=bias) if position > 5 else params
            table.begin_forward()
            table.embed([Row(position, position, 0)])
            table.prefill()
            table.logits([0])
            table.sample([Sample(0, 0, position + 1, biased, top_logprobs=20, **masked)])
            table.end_forward()
            retired = table.retire(wait=True)
            assert retired is not None and retired.logprobs[0] is not None
            assert 0 <= retired.tokens[0] < vocab_size
            assert all(0 <= token < vocab_size for token, _ in retired.logprobs[0].top)
    finally:
        model.table.close()


def test_without_half_precision_arithmetic_the_answer_is_the_same(tiny: LoadedModel, model_of: Callable) -> None:
    """No kernel asks for it, so no device lacks it; pages of full and of half precision agree."""
    asking = [path.name for path in SHADERS.rglob("*.wgsl") if re.search(r"enable\s+f16", path.read_text("utf-8"))]
    assert not asking
    assert "shader-f16" not in table_of(tiny)._runner.gpu.features
    half = model_of(TINY, kv_type="f16")
    told = [Answer(model, PROMPT, sampling=GREEDY, max_tokens=24, ignore_eos=True).tokens for model in (tiny, half)]
    assert told[0] == told[1]


def test_the_same_prompt_again_and_again_gives_the_same_answer(tiny: LoadedModel) -> None:
    core = Engine(tiny.table, tiny.tokenizer)
    params = SamplingParams(temperature=0.9, seed=3)
    answers = [Answer(tiny, PROMPT * 3, core=core, sampling=params, max_tokens=40, ignore_eos=True) for _ in range(5)]
    assert [answer.num_cached for answer in answers] == [0] + [len(PROMPT) * 3 - 1] * 4
    assert len({tuple(answer.tokens) for answer in answers}) == 1
    assert answers[0].reason == "length"


def test_buffers_larger_than_a_binding_are_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_llama(tmp_path / "wide.gguf", Shape(hidden=256, vocab_size=1001, intermediate=480, head_dim=64))

    def answer() -> list[int]:
        model = load_quietly(path)
        try:
            return Answer(model, PROMPT, sampling=GREEDY, max_tokens=16, ignore_eos=True).tokens
        finally:
            model.table.close()

    def narrow(name: str | None) -> Gpu:
        gpu = open_gpu(name)
        gpu.limits["max-storage-buffer-binding-size"] = 256 << 10
        return gpu

    expected = answer()
    monkeypatch.setattr(engine.loader, "open_gpu", narrow)
    monkeypatch.setattr(shaders.packing, "STAGING_BYTES", 64 << 10)
    assert answer() == expected


def test_an_answer_does_not_run_on_past_the_models_own_end_token(starter_path: Path, model_of: Callable) -> None:
    model = model_of(starter_path, kv_type="f16")
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = model.chat_template.prompt_ids(question, model.tokenizer)
    answer = Answer(model, prompt, sampling=GREEDY, logprobs=0)
    assert answer.reason == "stop"
    assert 3 < len(answer.tokens) < 60
    assert not {*answer.tokens} & model.tokenizer.stop_ids
    assert len(answer.logprobs) == len(answer.tokens)

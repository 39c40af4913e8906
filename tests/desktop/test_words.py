"""The sentences that hold numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from desktop import words
from engine.config import Estimate
from engine.loading import LoadProgress
from engine.request import Delta, Timings, Usage


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 MB"), (97_600_000, "98 MB"), (999_000_000, "999 MB"), (5_040_000_000, "5.0 GB")]
)
def test_sizes_are_gb_with_one_decimal_or_whole_mb(count: int, text: str) -> None:
    assert words.size(count) == text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("SmolLM2-135M-Instruct-Q4_1.gguf", "SmolLM2 135M Instruct"),
        ("qwen3-8b.Q4_K_M.gguf", "qwen3 8b"),
        ("phi-4-IQ2_XS.gguf", "phi 4"),
        ("llama-bf16.gguf", "llama"),
        ("Q4_0.gguf", "Q4 0"),
        ("a folder", "a folder"),
    ],
)
def test_a_model_is_named_after_its_file(name: str, text: str) -> None:
    assert words.model_name(Path(name)) == text


def test_loading_says_how_far_it_is() -> None:
    def line(done: int, total: int) -> str:
        return words.loading("M", LoadProgress(stage="Loading weights", done_bytes=done, total_bytes=total))

    assert words.loading("M", None) == "Loading M. You can write already."
    assert line(31_000_000, 98_000_000) == "Loading M, 31 of 98 MB. You can write already."
    assert line(3_100_000_000, 5_000_000_000) == "Loading M, 3.1 of 5.0 GB. You can write already."
    assert line(98, 98) == "Loading M, almost done. You can write already."


def test_stats_name_speed_first_token_and_kept_part() -> None:
    delta = Delta(
        request_id="r",
        finish_reason="stop",
        usage=Usage(prompt_tokens=2103, completion_tokens=9, cached_tokens=1846),
        timings=Timings(ttft_s=0.41, prefill_tokens_per_s=1.0, decode_tokens_per_s=24.31),
    )
    assert words.stats(delta) == "24.3 tokens per second · first token 0.41 s · 1,846 of 2,103 prompt tokens kept"
    assert words.stats(Delta(request_id="r", finish_reason="stop")) == ""
    assert words.stats(Delta(request_id="r", finish_reason="abort")) == "Stopped"


def test_durations() -> None:
    durations = (0.141, 0.96, 6.24, 76.9)
    assert [words.seconds(each) for each in durations] == ["0.14 s", "1.0 s", "6.2 s", "1 min 16 s"]


def test_an_error_is_split_into_headline_and_rest() -> None:
    assert words.headline_and_rest("It broke. Mend it.", "x") == ("It broke.", "Mend it.")
    assert words.headline_and_rest("model.v2.gguf is no file", "x") == ("model.v2.gguf is no file", "")
    assert words.headline_and_rest("a" * 200, "x") == ("x", "a" * 200)


def test_memory_that_a_model_takes() -> None:
    def estimate(scale: int) -> Estimate:
        return Estimate(weights=41 * scale, context=6 * scale, working_space=2 * scale, tokens=8192)

    assert words.memory(estimate(10**8)) == "about 4.9 GB: 4.1 weights, 0.6 for 8,192 tokens, 0.2 working space"
    assert words.memory(estimate(10**6)) == "about 49 MB: 41 weights, 6 for 8,192 tokens, 2 working space"

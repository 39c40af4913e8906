"""What a caller asks of the engine and what comes back on the stream: frozen values that cross threads.

Knows nothing of models, pages or HTTP. Any thread may build and read these; nobody changes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from engine.errors import InvalidParameter

FinishReason = Literal["stop", "length", "tool_calls", "abort", "error"]


def _require(condition: bool, name: str, value: object, allowed: str) -> None:
    if not condition:
        raise InvalidParameter(f"{name} is {value}; it must be {allowed}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one token is drawn from logits; applied in the order of the fields, each over the renormalised rest.

    temperature 0 is greedy. top_k 0, top_p 1 and min_p 0 each mean off. The draw depends on (seed, position) alone.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        _require(0.0 <= self.temperature <= 100.0, "temperature", self.temperature, "from 0 to 100")
        _require(0 <= self.top_k < 2**31, "top_k", self.top_k, "0 (off) or more")
        _require(0.0 < self.top_p <= 1.0, "top_p", self.top_p, "above 0 and at most 1")
        _require(0.0 <= self.min_p <= 1.0, "min_p", self.min_p, "from 0 to 1")
        _require(0 <= self.seed < 2**64, "seed", self.seed, "from 0 to 2^64 - 1")


GREEDY = SamplingParams(temperature=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt to be continued.

    max_tokens None means as far as the context reaches. Stop strings end the answer before their first character;
    ignore_eos switches off both stop strings and the model's own end tokens.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams = GREEDY
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        _require(len(self.prompt_ids) > 0, "prompt", "no tokens", "at least one token")
        if self.max_tokens is not None:
            _require(self.max_tokens >= 1, "max_tokens", self.max_tokens, "at least 1")
        _require(all(self.stop), "stop", "an empty string", "strings with at least one character")


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts of a finished request; cached_tokens is the part of the prompt that was not computed again."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Seconds and rates of a finished request, measured on the engine's clock. Rates are 0 where nothing was timed."""

    ttft_s: float
    prefill_tokens_per_s: float
    decode_tokens_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """One event on a request's stream. The last one has a finish_reason, and usage and timings unless it failed early.

    text holds whole characters only. An error is a delta with finish_reason "error" and a sentence in `error`.
    """

    request_id: str
    text: str = ""
    token_ids: tuple[int, ...] = field(default=())
    finish_reason: FinishReason | None = None
    error: str | None = None
    usage: Usage | None = None
    timings: Timings | None = None

"""What a caller asks of the engine and what comes back on the stream: frozen values that cross threads.

Knows nothing of models, pages or HTTP. Any thread may build and read these; nobody changes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from engine.errors import InvalidParameter

MAX_BIASED_TOKENS = 300
MAX_TOP_LOGPROBS = 20
MAX_CHOICES = 16
FinishReason = Literal["stop", "length", "tool_calls", "abort", "error"]


def _require(condition: bool, name: str, value: object, allowed: str) -> None:
    if not condition:
        raise InvalidParameter(f"{name} is {value}; it must be {allowed}.", param=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one token is drawn from logits; applied in the order of the fields, each over the renormalised rest.

    logit_bias adds to single tokens' logits. A repetition_penalty above 1 divides a positive logit and multiplies a
    negative one for every token of the prompt or the answer (Keskar et al. 2019, arXiv:1909.05858). frequency_penalty
    is subtracted once per occurrence in the answer, presence_penalty once. temperature 0 is greedy. top_k 0, top_p 1
    and min_p 0 each mean off. The draw depends on (seed, position) alone.
    """

    logit_bias: tuple[tuple[int, float], ...] = ()
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
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
        repetition = self.repetition_penalty
        _require(0.0 < repetition <= 100.0, "repetition_penalty", repetition, "above 0 and at most 100")
        for name in ("frequency_penalty", "presence_penalty"):
            _require(-2.0 <= getattr(self, name) <= 2.0, name, getattr(self, name), "from -2 to 2")
        biased = len(self.logit_bias)
        _require(biased <= MAX_BIASED_TOKENS, "logit_bias", f"{biased} tokens long", f"{MAX_BIASED_TOKENS} at most")
        for token, bias in self.logit_bias:
            _require(token >= 0, "logit_bias", f"for token {token}", "for tokens of the model")
            _require(-100.0 <= bias <= 100.0, "logit_bias", bias, "from -100 to 100")

    @property
    def counts_tokens(self) -> bool:
        """Whether the draw depends on which tokens there were before."""
        return self.repetition_penalty != 1.0 or self.frequency_penalty != 0.0 or self.presence_penalty != 0.0


GREEDY = SamplingParams(temperature=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt to be continued.

    max_tokens None means as far as the context reaches. Stop strings end the answer before their first character;
    ignore_eos switches off both stop strings and the model's own end tokens. stop_ids end it as the model's own do.

    n answers share the prompt; answer i draws with seed + i. logprobs asks for the logprob of each token and of so many
    likelier ones, from the raw distribution (before bias, penalties and temperature); prompt_logprobs the same of the
    prompt. deadline_s ends the request with an error that long after it arrived. use_cache False neither reads nor
    leaves anything in the prefix cache; pin keeps the prompt in it until the engine is reset. persist False leaves
    nothing on disk; chat names the conversation, so that what is kept of it can be forgotten with it.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams = GREEDY
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    stop_ids: tuple[int, ...] = ()
    n: int = 1
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    deadline_s: float | None = None
    use_cache: bool = True
    pin: bool = False
    persist: bool = True
    chat: str | None = None

    def __post_init__(self) -> None:
        _require(len(self.prompt_ids) > 0, "prompt", "no tokens", "at least one token")
        if self.max_tokens is not None:
            _require(self.max_tokens >= 1, "max_tokens", self.max_tokens, "at least 1")
        _require(all(self.stop), "stop", "an empty string", "strings with at least one character")
        _require(1 <= self.n <= MAX_CHOICES, "n", self.n, f"from 1 to {MAX_CHOICES}")
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            _require(value is None or 0 <= value <= MAX_TOP_LOGPROBS, name, value, f"from 0 to {MAX_TOP_LOGPROBS}")
        _require(self.deadline_s is None or self.deadline_s > 0.0, "deadline", self.deadline_s, "above 0 seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """A token's log probability (natural, raw distribution) and the likeliest tokens with theirs, best first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


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
    """One event on a request's stream; `index` says which of its n answers speaks.

    Each answer's last delta has a finish_reason. The request's last one also has usage, over all answers, and timings,
    unless it failed early. text holds whole characters only. An error is a delta with finish_reason "error" and a
    sentence in `error`, and error_type names the class of engine/errors.py where there is one; it ends the whole
    request. logprobs has one entry per token of token_ids where they were asked
    for; prompt_logprobs comes once, with the first delta, and has no entry for the first token.
    """

    request_id: str
    index: int = 0
    text: str = ""
    token_ids: tuple[int, ...] = field(default=())
    finish_reason: FinishReason | None = None
    error: str | None = None
    error_type: str | None = None
    usage: Usage | None = None
    timings: Timings | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()

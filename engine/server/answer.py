"""From the engine's deltas to the JSON of an answer: chunk by chunk for a stream, or whole.

Knows the wire's order of events, not how they are sent. Runs on the endpoint's event loop.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from msgspec import UNSET

from engine.request import Delta, TokenLogprobs, Usage
from engine.server.convert import Asked
from engine.server.exchange import encode
from engine.server.protocol import (
    AnswerMessage,
    ChatChunk,
    ChatCompletion,
    Choice,
    ChoiceLogprobs,
    ChunkChoice,
    ChunkDelta,
    ErrorEnvelope,
    PromptTokensDetails,
    TokenLogprob,
    TopLogprob,
    UsageCounts,
)
from models.tokenizer import Tokenizer

DONE = b"data: [DONE]\n\n"
_LEAST_LOGPROB = -9999.0  # JSON has no infinity; this is what the API says instead


class StreamedAnswer:
    """One request's events as bytes: opening(), chunks() of each delta, closing()."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._created = int(time.time())
        self._usage: Usage | None = None

    def opening(self) -> bytes:
        """Who speaks, for each of the n answers."""
        choices = range(self._asked.request.n)
        return b"".join(self._choice(index, ChunkDelta(role="assistant", content="")) for index in choices)

    def chunks(self, delta: Delta) -> bytes:
        """What a delta without an error adds; empty where that is nothing."""
        self._usage = delta.usage or self._usage
        events = b""
        if delta.text or delta.logprobs:
            logprobs = choice_logprobs(delta.logprobs, self._asked.tokenizer) if delta.logprobs else None
            events = self._choice(delta.index, ChunkDelta(content=delta.text), logprobs)
        if delta.finish_reason is not None:
            events += self._choice(delta.index, ChunkDelta(), finish_reason=delta.finish_reason)
        return events

    def closing(self) -> bytes:
        """The token counts, where they were asked for, and the end."""
        if not self._asked.include_usage or self._usage is None:
            return DONE
        return self._event([], usage_counts(self._usage)) + DONE

    def _choice(
        self,
        index: int,
        delta: ChunkDelta,
        logprobs: ChoiceLogprobs | None = None,
        finish_reason: str | None = None,
    ) -> bytes:
        return self._event([ChunkChoice(index, delta, logprobs, finish_reason)], None)

    def _event(self, choices: list[ChunkChoice], usage: UsageCounts | None) -> bytes:
        chunk = ChatChunk(
            id=self._asked.request.request_id,
            created=self._created,
            model=self._asked.model_id,
            choices=choices,
            usage=usage if self._asked.include_usage else UNSET,
        )
        return b"data: %b\n\n" % encode(chunk)


class WholeAnswer:
    """One request's n answers, gathered."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        num_answers = asked.request.n
        self._texts: list[list[str]] = [[] for _ in range(num_answers)]
        self._logprobs: list[list[TokenLogprobs]] = [[] for _ in range(num_answers)]
        self._reasons = ["stop"] * num_answers
        self._usage = Usage(prompt_tokens=len(asked.request.prompt_ids), completion_tokens=0)

    def add(self, delta: Delta) -> None:
        """Take in a delta without an error."""
        self._texts[delta.index].append(delta.text)
        self._logprobs[delta.index].extend(delta.logprobs)
        self._reasons[delta.index] = delta.finish_reason or self._reasons[delta.index]
        self._usage = delta.usage or self._usage

    def completion(self) -> ChatCompletion:
        """All of it."""
        return ChatCompletion(
            id=self._asked.request.request_id,
            created=int(time.time()),
            model=self._asked.model_id,
            choices=[self._choice(index) for index in range(self._asked.request.n)],
            usage=usage_counts(self._usage),
        )

    def _choice(self, index: int) -> Choice:
        wanted = self._asked.request.logprobs is not None
        return Choice(
            index=index,
            message=AnswerMessage("".join(self._texts[index])),
            finish_reason=self._reasons[index],
            logprobs=choice_logprobs(self._logprobs[index], self._asked.tokenizer) if wanted else None,
        )


def error_event(envelope: ErrorEnvelope) -> bytes:
    """The event that ends a stream which cannot go on."""
    return b"data: %b\n\n" % encode(envelope)


def usage_counts(usage: Usage) -> UsageCounts:
    """The token counts as the API names them."""
    return UsageCounts(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details=PromptTokensDetails(usage.cached_tokens),
    )


def choice_logprobs(entries: Sequence[TokenLogprobs], tokenizer: Tokenizer) -> ChoiceLogprobs:
    """The tokens' logprobs with their texts; a token that is part of a character shows as U+FFFD beside its bytes."""
    content = []
    for entry in entries:
        top = [TopLogprob(*_named(token, logprob, tokenizer)) for token, logprob in entry.top]
        content.append(TokenLogprob(*_named(entry.token, entry.logprob, tokenizer), top))
    return ChoiceLogprobs(content)


def _named(token: int, logprob: float, tokenizer: Tokenizer) -> tuple[str, float, list[int] | None]:
    raw = tokenizer.token_bytes(token)
    logprob = max(logprob, _LEAST_LOGPROB)
    if not raw:  # a control token: its name, and no bytes, since it is no text
        return tokenizer.token_text(token), logprob, None
    return raw.decode(errors="replace"), logprob, list(raw)

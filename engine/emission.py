"""What a request has to tell its caller, before its bytes became text. The stream-back loop makes it a Delta.

Frozen values; made on the engine's background thread, read on the stream-back thread.
"""

from __future__ import annotations

from typing import NamedTuple

from engine.request import FinishReason, Timings, TokenLogprobs, Usage


class Emission(NamedTuple):
    """As Delta, but bytes; `answer` is its index. With a finish_reason and no `open_answers` it is the last one."""

    request_id: str
    token_ids: tuple[int, ...] = ()
    text: bytes = b""
    finish_reason: FinishReason | None = None
    error: str | None = None
    usage: Usage | None = None
    timings: Timings | None = None
    answer: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    open_answers: int = 0
    error_type: str | None = None

    @property
    def ends_request(self) -> bool:
        """Nothing more comes of the request."""
        return self.finish_reason is not None and not self.open_answers

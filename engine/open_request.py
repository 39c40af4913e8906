"""One open request: its answers, what their prompt brought, and the times that are measured over all of them.

Does not know the device or the queues. Only the engine's background thread touches it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.request import Request, Timings, TokenLogprobs, Usage
from engine.request_state import RequestState


@dataclass(slots=True, eq=False)
class OpenRequest:
    """`answers` are all, open or ended; the first is the root, from whose prompt the others are forked."""

    request: Request
    arrived: float
    answers: list[RequestState] = field(default_factory=list)
    num_open: int = 0
    num_cached: int = 0
    """Prompt tokens that needed no computing when the root was first admitted."""
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    prefill_started: float | None = None
    first_token_at: float = 0.0
    last_token_at: float = 0.0

    @property
    def deadline(self) -> float | None:
        """When the request has taken too long."""
        return None if self.request.deadline_s is None else self.arrived + self.request.deadline_s

    def note_token_time(self, now: float) -> None:
        """Call once per token that retired."""
        if not self.first_token_at:
            self.first_token_at = now
        self.last_token_at = now

    @property
    def usage(self) -> Usage:
        """completion_tokens counts every token that the model gave, an end token too, as llama.cpp's server does."""
        return Usage(
            prompt_tokens=len(self.request.prompt_ids),
            completion_tokens=sum(len(answer.committed) for answer in self.answers),
            cached_tokens=self.num_cached,
        )

    @property
    def timings(self) -> Timings:
        """Of what was retired so far; zeros where there is nothing to measure."""
        if not self.first_token_at or self.prefill_started is None:
            return Timings(ttft_s=0.0, prefill_tokens_per_s=0.0, decode_tokens_per_s=0.0)
        num_computed = len(self.request.prompt_ids) - self.num_cached
        num_decoded = sum(len(answer.committed) for answer in self.answers) - 1
        return Timings(
            ttft_s=self.first_token_at - self.arrived,
            prefill_tokens_per_s=_rate(num_computed, self.first_token_at - self.prefill_started),
            decode_tokens_per_s=_rate(num_decoded, self.last_token_at - self.first_token_at),
        )


def open_request(request: Request, limit: int, arrived: float) -> OpenRequest:
    """The books of a new request, each of whose answers may draw `limit` tokens."""
    opened = OpenRequest(request, arrived, num_open=request.n)
    root = RequestState(request, limit, arrived)
    opened.answers.append(root)
    for index in range(1, request.n):
        opened.answers.append(RequestState(request, limit, arrived, index=index, root=root))
    return opened


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0.0 else 0.0

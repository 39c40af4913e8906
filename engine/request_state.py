"""The ledger of one request: its prompt, what was drawn for it, what is known of that, and what was told.

Owns token counts, draft tokens, the stop checks and the measured times. Does not know the device, the queues or the
other requests; engine/state.py moves it between them. Only the engine's background thread touches it.

One request is one sequence here; the further sequences of n > 1 will be ledgers forked from this one. A grammar's
next_token_bitmask will stand here too, beside the tokens that it follows.

    prompt            [0 ........ num_prefilled .... num_prompt)
    generated                                        [0 .. num_returned .. len(committed) .. num_drawn .. limit)
                                                      told on the stream  retired  in flight    never drawn
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from engine.detokenizer import StopFinder
from engine.function_table import FROM_DEVICE, PAGE_SIZE
from engine.request import FinishReason, Request, Timings, Usage


class Vocabulary(Protocol):
    """What the engine needs of a tokenizer; models.tokenizer.Tokenizer has it."""

    @property
    def stop_ids(self) -> frozenset[int]: ...

    def token_bytes(self, token: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class DraftToken:
    """A guess at a coming token: the workspace slot of its distribution, and the draft it follows (-1: committed)."""

    token: int
    slot: int
    parent: int


@dataclass(slots=True, eq=False)
class RequestState:
    """See the module's docstring. `limit` is the number of tokens that may be drawn at most, at least 1."""

    request: Request
    limit: int
    arrived: float
    slot: int = -1
    pages: list[int] = field(default_factory=list)
    num_prefilled: int = 0
    num_drawn: int = 0
    committed: list[int] = field(default_factory=list)
    drafts: list[DraftToken] = field(default_factory=list)
    num_returned: int = 0
    finish_reason: FinishReason | None = None
    prefill_started: float | None = None
    first_token_at: float = 0.0
    last_token_at: float = 0.0
    stop_finder: StopFinder | None = None

    def __post_init__(self) -> None:
        if self.request.stop and not self.request.ignore_eos:
            self.stop_finder = StopFinder(self.request.stop)

    @property
    def num_prompt(self) -> int:
        return len(self.request.prompt_ids)

    @property
    def num_pages_needed(self) -> int:
        """Pages of the longest sequence that this request can become. The last token's keys are never computed."""
        return -(-(self.num_prompt + self.limit - 1) // PAGE_SIZE)

    @property
    def can_run_ahead(self) -> bool:
        """Whether another token may be drawn, known or not what the last one was. (A grammar or drafts would wait.)"""
        return self.num_drawn < self.limit

    @property
    def next_input(self) -> int:
        """The token that decoding feeds next: the last one drawn. The device knew it first and keeps it.

        So even one that has come back is not sent again, and a table may find that it need not be told anything.
        """
        return FROM_DEVICE

    def commit_token(self, token: int) -> None:
        """Record the oldest token in flight as known. Inverse: rollback_tokens(1)."""
        assert len(self.committed) < self.num_drawn, "committed what was never drawn"
        self.committed.append(token)

    def rollback_tokens(self, count: int) -> None:
        """Undo the last `count` commits, of which none was returned yet. Inverse: committing the same tokens."""
        assert 0 <= count <= len(self.committed) - self.num_returned, "rolled back what was told already"
        del self.committed[len(self.committed) - count :]

    def add_draft_token(self, token: int, slot: int, parent: int) -> None:
        """Append a draft. Inverse: remove_all_draft_tokens, for all of them at once."""
        assert -1 <= parent < len(self.drafts), "a draft follows a later one"
        self.drafts.append(DraftToken(token, slot, parent))

    def remove_all_draft_tokens(self) -> list[int]:
        """Forget the drafts; returns their workspace slots, each once, to be recycled."""
        slots = list(dict.fromkeys(draft.slot for draft in self.drafts))
        self.drafts.clear()
        return slots

    def delta_request_return(self, vocabulary: Vocabulary) -> tuple[tuple[int, ...], bytes, FinishReason | None]:
        """Tokens and text bytes committed since the last call, and why the request ends with them, if it does.

        An end token and everything after it is left out. Tokens of a stop string are in, its text is not. Tokens
        committed beyond the end are rolled back. No inverse.
        """
        committed, start = self.committed, self.num_returned
        pieces: list[bytes] = []
        for index in range(start, len(committed)):
            token = committed[index]
            if token in vocabulary.stop_ids and not self.request.ignore_eos:
                self._end_after(index)
                return tuple(committed[start:index]), b"".join(pieces), "stop"
            piece, stopped = vocabulary.token_bytes(token), False
            if self.stop_finder is not None:
                piece, stopped = self.stop_finder.feed(piece)
            pieces.append(piece)
            if stopped:
                self._end_after(index)
                return tuple(committed[start : index + 1]), b"".join(pieces), "stop"
        self.num_returned = len(committed)
        reason: FinishReason | None = "length" if len(committed) >= self.limit else None
        return tuple(committed[start:]), b"".join(pieces), reason

    def flush_text(self) -> bytes:
        """Text held back for a stop string that did not come."""
        return self.stop_finder.flush() if self.stop_finder is not None else b""

    def note_token_time(self, now: float) -> None:
        """Call once per retired step that brought tokens."""
        if not self.committed:
            self.first_token_at = now
        self.last_token_at = now

    @property
    def usage(self) -> Usage:
        """completion_tokens counts every token that the model gave, an end token too, as llama.cpp's server does."""
        return Usage(prompt_tokens=self.num_prompt, completion_tokens=len(self.committed))

    @property
    def timings(self) -> Timings:
        """Of what was retired so far; zeros where there is nothing to measure."""
        if not self.committed or self.prefill_started is None:
            return Timings(ttft_s=0.0, prefill_tokens_per_s=0.0, decode_tokens_per_s=0.0)
        return Timings(
            ttft_s=self.first_token_at - self.arrived,
            prefill_tokens_per_s=_rate(self.num_prompt, self.first_token_at - self.prefill_started),
            decode_tokens_per_s=_rate(len(self.committed) - 1, self.last_token_at - self.first_token_at),
        )

    def _end_after(self, index: int) -> None:
        self.num_returned = index
        self.rollback_tokens(len(self.committed) - index - 1)
        self.num_returned = len(self.committed)


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0.0 else 0.0

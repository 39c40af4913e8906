"""The ledger of one answer: its prompt, what was drawn for it, what is known of that, and what was told.

Owns token counts, draft tokens and the stop checks. Does not know the device, the queues or other requests;
engine/state.py moves it between them. Only the engine's background thread touches it.

One answer is one sequence. A request for n answers has n of these (engine/open_request.py); the first is the root of
the others. A grammar's next_token_bitmask will stand here too, beside the tokens that it follows.

    prompt            [0 ................................ num_prompt)
    generated                                        [0 .. num_returned .. len(committed) .. num_drawn .. limit)
                                                      told on the stream  retired  in flight    never drawn

While it is admitted, tokens of prompt and answer are computed up to num_target at first, and then as they are drawn:

    keys and values   [0 .. num_retired .. num_prefilled .. num_target)
                       worth keeping  submitted  to be computed before anything is drawn
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol

from engine.detokenizer import StopFinder
from engine.function_table import FROM_DEVICE, PAGE_SIZE
from engine.request import MAX_CHOICES, FinishReason, Request, SamplingParams, TokenLogprobs


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
    """See the module's docstring. `limit` is the number of tokens that may be drawn at most, at least 1.

    `order` is that of arrival: of requests first, then of their answers.
    """

    request: Request
    limit: int
    arrived: float
    index: int = 0
    order: int = 0
    root: RequestState | None = None
    sampling: SamplingParams = field(init=False)
    slot: int = -1
    pages: list[int] = field(default_factory=list)
    """In the order of their positions; NO_PAGE (engine/window.py) for those that left the window."""
    copy: tuple[int, int] | None = None
    """A page to be copied into one of its own with its next chunk; the source is held until then."""
    num_target: int = 0
    num_prefilled: int = 0
    num_retired: int = 0
    score_from: int = 0
    """Logprobs of prompt tokens are still to be had from this position on."""
    last_step: int = 0
    has_started: bool = False
    """Its whole prompt was submitted once, so that others may fork from it."""
    overtaken: int = 0
    restored: bool = False
    """What the tiers below the device have of it was looked for."""
    num_noted: int = 0
    noted_key: bytes = b""
    """So many leading tokens were noted to be kept below the device, as whole kv blocks, and the last one's key."""
    forgotten: bool = False
    """Its chat was deleted meanwhile: nothing of it is to be kept."""
    num_drawn: int = 0
    committed: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    drafts: list[DraftToken] = field(default_factory=list)
    num_returned: int = 0
    num_told: int = 0
    """Tokens whose logprobs were told."""
    told_prompt: bool = False
    finish_reason: FinishReason | None = None
    stop_finder: StopFinder | None = None

    def __post_init__(self) -> None:
        params = self.request.sampling
        self.sampling = replace(params, seed=(params.seed + self.index) % 2**64) if self.index else params
        if self.request.stop and not self.request.ignore_eos:
            self.stop_finder = StopFinder(self.request.stop)

    @property
    def num_prompt(self) -> int:
        return len(self.request.prompt_ids)

    @property
    def known_tokens(self) -> list[int]:
        """The prompt and what was committed."""
        return [*self.request.prompt_ids, *self.committed]

    @property
    def next_position(self) -> int:
        """Where decoding feeds the last token that was drawn."""
        return len(self.request.prompt_ids) + self.num_drawn - 1

    @property
    def num_pages_needed(self) -> int:
        """Pages of the longest sequence that this answer can become, were none dropped. The last token's keys are never
        computed."""
        return -(-(self.num_prompt + self.limit - 1) // PAGE_SIZE)

    @property
    def next_row(self) -> int:
        """Position of the next row to be computed, while it is admitted."""
        return self.num_prefilled if self.num_prefilled < self.num_target else self.next_position

    @property
    def lacks_page(self) -> bool:
        """Whether it has reached a page that it has not."""
        return len(self.pages) * PAGE_SIZE <= self.next_row and self.num_drawn < self.limit

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

    def forget_device(self) -> None:
        """The device is gone and all that it held: only what was committed counts. No inverse."""
        self.slot, self.pages, self.copy, self.restored = -1, [], None, False
        self.num_target = self.num_prefilled = self.num_retired = self.last_step = 0
        self.num_drawn = len(self.committed)

    def commit_token(self, token: int, logprob: TokenLogprobs | None = None) -> None:
        """Record the oldest token in flight as known. Inverse: rollback_tokens(1)."""
        assert len(self.committed) < self.num_drawn, "committed what was never drawn"
        self.committed.append(token)
        if logprob is not None:
            self.logprobs.append(logprob)
        if self.slot >= 0:
            self.num_retired = len(self.request.prompt_ids) + len(self.committed) - 1

    def rollback_tokens(self, count: int) -> None:
        """Undo the last `count` commits, of which none was returned yet. Inverse: committing the same tokens."""
        assert 0 <= count <= len(self.committed) - self.num_returned, "rolled back what was told already"
        remaining = len(self.committed) - count
        del self.committed[remaining:], self.logprobs[remaining:]
        self.num_retired = min(self.num_retired, self.num_prompt + remaining)

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
        stop_ids, more_stop_ids = vocabulary.stop_ids, self.request.stop_ids
        pieces: list[bytes] = []
        for index in range(start, len(committed)):
            token = committed[index]
            if (token in stop_ids or token in more_stop_ids) and not self.request.ignore_eos:
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

    def _end_after(self, index: int) -> None:
        self.num_returned = index
        self.rollback_tokens(len(self.committed) - index - 1)
        self.num_returned = len(self.committed)


def arrival_order(request_number: int, index: int) -> int:
    """RequestState.order of a request's answer."""
    return request_number * MAX_CHOICES + index

"""The vtable between actions and a loaded model: what a model can do, named, without saying how.

Two tables implement it: engine/gpu_table.py and the arithmetic one in engine/fake_table.py. An action never sees a
shader, a table never sees a request. Only the engine's background thread calls a table.

A step is recorded between begin_forward() and end_forward(), which submits it and returns at once. Its tokens arrive
from retire(), oldest step first. A sampled token is fed to the sequence's next step on the device, so a row whose
token the host does not know yet says FROM_DEVICE.

    begin_forward  [copy_pages]  embed(rows)  prefill() | decode()  [logits(rows)  [sample(samples)]]  end_forward
    begin_forward  load_pages | save_pages  end_forward

A step of the second kind moves whole pages between device and host and computes nothing. It is a step like any other:
what it loads may be read by every later one, and what it saves arrives when it retires.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.request import SamplingParams, TokenLogprobs

FROM_DEVICE = -1
PAGE_SIZE = 16
"""Token positions per page (the device layout is built on it)."""

MAX_IN_FLIGHT = 4
"""Steps that may be submitted and not yet retired."""

MAX_MOVED_PAGES = 4
"""Pages that one step may load or save."""


@dataclass(frozen=True, slots=True)
class Row:
    """One token's place in a step: its id (or FROM_DEVICE), its position, and its sequence's slot on the device."""

    token: int
    position: int
    slot: int


@dataclass(frozen=True, slots=True)
class Sample:
    """Draw a token from the logits of one row.

    `row` indexes the rows of this step's embed(). `position` is that of the token drawn; it keys the random numbers.
    The token becomes the slot's FROM_DEVICE token, and counts for the slot's penalties.

    top_logprobs: None, or how many of the likeliest tokens to report besides the drawn one (0 to 20). forced: nothing
    is drawn, no slot changes; this token's logprob is reported, and the step retires with it in the draw's place.
    bitmask: u32[ceil(vocab / 32)] as bytes, 1 = may be drawn; None: all may.
    """

    row: int
    slot: int
    position: int
    params: SamplingParams
    top_logprobs: int | None = None
    forced: int | None = None
    bitmask: bytes | None = None

    @property
    def is_plain(self) -> bool:
        """Whether it is drawn from its logits as they are, and nothing but the token is reported."""
        if self.top_logprobs is not None or self.forced is not None or self.bitmask is not None:
            return False
        return not (self.params.logit_bias or self.params.counts_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLimits:
    """What one loaded model can hold, complete: nothing here is optional. page_bytes: one page, in every layer.

    window: a row attends to its own token and the window - 1 before it; sinks: and to so many first ones of its
    sequence. A page that a row does not reach may be anybody's. window 0: a row attends to everything before it.
    """

    vocab_size: int
    context_length: int
    max_rows: int
    max_samples: int
    max_slots: int
    num_pages: int
    page_bytes: int
    window: int
    sinks: int
    max_in_flight: int = MAX_IN_FLIGHT


@dataclass(frozen=True, slots=True)
class RetiredStep:
    """A step that the device has finished: its number and one token per Sample, in their order.

    logprobs is empty, or has an entry per Sample: None where its top_logprobs is None. pages is what save_pages() asked
    for, page after page.
    """

    step: int
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs | None, ...] = ()
    pages: bytes = b""


class FunctionTable(Protocol):
    """See the module's docstring for the order of calls. Steps are numbered from 1.

    All arguments are validated by the caller (rows within max_rows, slots within max_slots, pages within num_pages):
    an invalid dispatch would abort the process, so a table checks again and raises ValueError.
    """

    @property
    def limits(self) -> TableLimits: ...

    @property
    def last_submitted(self) -> int:
        """Number of the newest submitted step, 0 before the first."""
        ...

    @property
    def in_flight(self) -> int:
        """Steps submitted and not yet retired."""
        ...

    def set_pages(self, slot: int, first: int, pages: Sequence[int]) -> None:
        """Write entries of a sequence's page table, from index `first` on, ahead of the next step."""
        ...

    def set_counts(self, slot: int, prompt_ids: Sequence[int], generated_ids: Sequence[int]) -> None:
        """Say which tokens a slot's sequence has so far, ahead of the next step, for penalties.

        Needed once a sequence enters a slot and only if its params count tokens; draws are then counted on the device.
        """
        ...

    def begin_forward(self) -> None: ...

    def copy_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole pages (source, target) in every layer, ahead of this step's rows."""
        ...

    def load_pages(self, pages: Sequence[int], data: bytes) -> None:
        """Fill whole pages, at most MAX_MOVED_PAGES, with what save_pages() once brought: [pages, page_bytes]."""
        ...

    def save_pages(self, pages: Sequence[int]) -> None:
        """Bring whole pages, at most MAX_MOVED_PAGES, to the host as they are after all earlier steps.

        Their bytes mean something to a table of the same model, key-value type and device alone.
        """
        ...

    def blank_tail(self, page: bytes, num_tokens: int) -> bytes:
        """A saved page with zeros in the place of whatever is behind its first num_tokens positions."""
        ...

    def embed(self, rows: Sequence[Row]) -> None: ...

    def prefill(self) -> None:
        """Run the layers over rows of which several may belong to one sequence, ascending by position."""
        ...

    def decode(self) -> None:
        """Run the layers over rows that belong to different sequences, one each."""
        ...

    def logits(self, rows: Sequence[int]) -> None:
        """Compute logits of the named rows of this step."""
        ...

    def sample(self, samples: Sequence[Sample]) -> None:
        """Draw one token per sample; their rows are those of logits(), in the same order."""
        ...

    def end_forward(self) -> int:
        """Submit the step and return its number. Raises DeviceFailed where the device is gone."""
        ...

    def retire(self, *, wait: bool) -> RetiredStep | None:
        """The oldest step in flight if it is done (or, with wait, when it is); None if none is."""
        ...

    def close(self) -> None:
        """Wait for what is in flight and free the device's memory. Idempotent."""
        ...

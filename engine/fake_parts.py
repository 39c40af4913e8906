"""What a FakeTable is made of and what its tests compute with: the pretend model's arithmetic, small limits, faults.

Knows no table. Any thread.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.function_table import PAGE_SIZE, TableLimits
from engine.request import TokenLogprobs

_MODULUS = 2**31 - 1

CELL = struct.Struct("<iii")
"""A token's place in a page as bytes: position, hash, token."""

NO_CELL = (-1, 0, 0)
PAGE_BYTES = PAGE_SIZE * CELL.size

NextToken = Callable[[int, int], int]
"""(hash of the sequence, its last token) -> the token that follows."""


def fold(state: int, token: int) -> int:
    """Hash of a sequence that is one token longer."""
    return (state * 31 + token + 1) % _MODULUS


def continuation(prompt: Sequence[int], count: int, next_token: NextToken) -> list[int]:
    """What a FakeTable with this next_token draws after the prompt."""
    tokens = list(prompt)
    state = 0
    for token in prompt:
        state = fold(state, token)
    for _ in range(count):
        tokens.append(next_token(state, tokens[-1]))
        state = fold(state, tokens[-1])
    return tokens[len(prompt) :]


def pretend_logprobs(state: int, token: int, num_top: int) -> TokenLogprobs:
    """What a FakeTable reports of a token that follows a sequence with this hash."""
    top = tuple(((state + rank) % 256, -0.5 * (rank + 1)) for rank in range(num_top))
    return TokenLogprobs(token=token, logprob=-(1 + (state + token) % 50) / 10, top=top)


def small_limits(
    *,
    vocab_size: int = 300,
    context_length: int = 256,
    max_rows: int = 32,
    max_samples: int = 8,
    max_slots: int = 8,
    num_pages: int = 64,
    max_in_flight: int = 4,
    window: int = 0,
    sinks: int = 0,
) -> TableLimits:
    """Limits small enough that tests meet every one of them."""
    return TableLimits(
        vocab_size=vocab_size,
        context_length=context_length,
        max_rows=max_rows,
        max_samples=max_samples,
        max_slots=max_slots,
        num_pages=num_pages,
        page_bytes=PAGE_BYTES,
        window=window,
        sinks=sinks,
        max_in_flight=max_in_flight,
    )


@dataclass(slots=True)
class Fault:
    """Raise `error` once, when `call` ("set_pages", "embed", ... "end_forward", "retire") meets step `step`."""

    call: str
    step: int
    error: Exception

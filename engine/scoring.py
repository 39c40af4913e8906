"""Logits after every token of a sequence, by driving a table directly: the numbers to compare with another program's.

Knows no sampling and no requests. The calling thread must be the one that owns the table, with no step in flight.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from engine.errors import ContextTooLong, InvalidParameter
from engine.function_table import PAGE_SIZE, FunctionTable, Row, TableLimits

_SLOT = 0


class ScoringTable(FunctionTable, Protocol):
    """A table whose logits the host can read, beyond what serving needs."""

    def read_logits(self, num_rows: int) -> npt.NDArray[np.float32]:
        """Logits of the newest submitted step in the order of its logits() rows, float32 [num_rows, vocab]; waits."""
        ...


def score(table: ScoringTable, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
    """Logits after each token, float32 [tokens, vocab]: row i predicts the token after token_ids[i].

    Uses slot 0 and the first pages. Raises InvalidParameter for ids that the model has not, ContextTooLong where the
    tokens do not fit, DeviceFailed.
    """
    limits = table.limits
    _check(token_ids, limits)
    logits = np.empty((len(token_ids), limits.vocab_size), dtype=np.float32)
    table.set_pages(_SLOT, 0, range(-(-len(token_ids) // PAGE_SIZE)))
    chunk = min(limits.max_rows, limits.max_samples)
    for first in range(0, len(token_ids), chunk):
        end = min(first + chunk, len(token_ids))
        rows = [Row(token_ids[position], position, _SLOT) for position in range(first, end)]
        _submit(table, rows)
        logits[first:end] = table.read_logits(len(rows))
        table.retire(wait=True)
    return logits


def _submit(table: ScoringTable, rows: Sequence[Row]) -> None:
    table.begin_forward()
    table.embed(rows)
    table.prefill()
    table.logits(range(len(rows)))
    table.end_forward()


def _check(token_ids: Sequence[int], limits: TableLimits) -> None:
    if not token_ids:
        raise InvalidParameter("There are no tokens to score. Give at least one.")
    for token in token_ids:
        if not 0 <= token < limits.vocab_size:
            raise InvalidParameter(f"Token {token} is not in the vocabulary; ids go from 0 to {limits.vocab_size - 1}.")
    room = min(limits.context_length, limits.num_pages * PAGE_SIZE)
    if len(token_ids) > room:
        raise ContextTooLong(
            f"{len(token_ids)} tokens do not fit the context of {room}. Load it with a larger --context."
        )

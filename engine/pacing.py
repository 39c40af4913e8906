"""How many prompt tokens a step may compute while somebody waits for the next token: from measured times.

Owns two kinds of averages: seconds of a step that only decodes, and seconds per prompt row beyond that, by depth. Knows
no sequence. Only the engine's background thread touches it.
"""

from __future__ import annotations

MAX_STEP_S = 0.5
MIN_ROWS = 8
_TARGET_S = 0.8 * MAX_STEP_S  # the averages follow from one step behind, or as many as are in flight
_FIRST_ROWS = 32
_DEPTH = 256
"""Positions over which a row costs about the same: attention grows with depth, and the averages have to follow."""

_WEIGHT = 0.5


class Pacer:
    """See the module's docstring."""

    __slots__ = ("_base_s", "_max_rows", "_row_s")

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self._base_s = 0.0
        self._row_s: dict[int, float] = {}

    def note(self, seconds: float, num_rows: int, depth: int) -> None:
        """A step took `seconds` for `num_rows` prompt rows (0: it only decoded), the deepest at position `depth`."""
        if not num_rows:
            self._base_s = _average(self._base_s, seconds)
            return
        row_s = max(0.0, seconds - self._base_s) / num_rows
        bucket = depth // _DEPTH
        self._row_s[bucket] = _average(self._row_s.get(bucket, 0.0), row_s)

    def rows(self, depth: int) -> int:
        """Prompt rows of a step at this depth that keep it under MAX_STEP_S: a multiple of 8, at least 8 if there are.

        At a depth not met yet, as at the nearest one that was.
        """
        row_s = self.row_seconds(depth)
        if row_s is None:
            return min(_FIRST_ROWS, self._max_rows)
        fitting = (_TARGET_S - self._base_s) / row_s if row_s > 0.0 else float(self._max_rows)
        rows = int(min(fitting, self._max_rows)) // MIN_ROWS * MIN_ROWS
        return min(max(rows, MIN_ROWS), self._max_rows)

    def row_seconds(self, depth: int) -> float | None:
        """Seconds that a prompt row takes at this depth, or at the nearest one that was met; None before the first."""
        if not self._row_s:
            return None
        bucket = depth // _DEPTH
        return self._row_s[min(self._row_s, key=lambda known: abs(known - bucket))]


def _average(average: float, value: float) -> float:
    return value if average == 0.0 else average + _WEIGHT * (value - average)

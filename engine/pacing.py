"""How many prompt tokens a step may compute while somebody waits for the next token: from measured times.

Owns two kinds of averages: seconds of a step that only decodes, and seconds per further row, by depth. What it knows is
a few steps old, since several are in flight; so it reckons with what depth adds until it has measured that. Knows no
sequence. Only the engine's background thread touches it.
"""

from __future__ import annotations

MAX_STEP_S = 0.5
MAX_STEP_ALONE_S = 1.0
"""Of a step that nobody waits for. Systems take a device for hung that works on one thing for 2 s."""

MIN_ROWS = 8
_MARGIN = 0.8  # for what no average foresees
_FIRST_ROWS = 32
_DEPTH = 256
"""Positions whose rows share an average."""

_EVEN_DEPTH = 128
"""Where attention costs a row as much as everything else together, at the earliest: what is not measured yet at some
depth costs at most (depth + this) / (measured depth + this) times as much."""

_WEIGHT = 0.5


class Pacer:
    """See the module's docstring."""

    __slots__ = ("_base_rows", "_base_s", "_max_rows", "_row_s")

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self._base_s = 0.0
        self._base_rows = 0.0
        self._row_s: dict[int, tuple[float, float]] = {}  # depth // _DEPTH -> mean depth, seconds

    def note(self, seconds: float, num_rows: int, num_decode: int, end: int) -> None:
        """A step took `seconds` for so many rows of prompts (0: it only decoded), the last at `end`, and of decoding.

        A row is a row: what rides along counts, or a short prompt by itself would seem to cost nothing.
        """
        if not num_rows:
            self._base_s = _average(self._base_s, seconds)
            self._base_rows = _average(self._base_rows, num_decode)
            return
        further = num_rows + num_decode - self._base_rows
        if further >= MIN_ROWS // 2:
            row_s = max(0.0, seconds - self._base_s) / further
        elif not self._row_s:
            row_s = seconds / (num_rows + num_decode)  # too much rather than too little
        else:
            return  # too like a step that only decodes to tell what a row costs
        mean = end - num_rows / 2
        known_mean, known_s = self._row_s.get(end // _DEPTH, (0.0, 0.0))
        self._row_s[end // _DEPTH] = _average(known_mean, mean), _average(known_s, row_s)

    def rows(self, depth: int, *, alone: bool = False, taking_turns: bool = False) -> int:
        """Prompt rows of a step from this depth on that keep it under MAX_STEP_S, or MAX_STEP_ALONE_S where it is
        `alone`: a multiple of 8, at least 8 if there are. With `taking_turns` a step that only decodes comes between
        two of them, and both together stay under it.
        """
        if not self._row_s:
            return min(_FIRST_ROWS, self._max_rows)
        left_s = _MARGIN * (MAX_STEP_ALONE_S if alone else MAX_STEP_S) - self._base_s * (2 if taking_turns else 1)
        rows = self._max_rows
        while rows > MIN_ROWS and rows * self._row_s_at(depth + rows / 2) > left_s:
            rows = (rows - 1) // MIN_ROWS * MIN_ROWS
        return rows

    def row_seconds(self, depth: int) -> float | None:
        """Seconds that a prompt row costs at this depth; None while nothing was measured."""
        return self._row_s_at(depth) if self._row_s else None

    def _row_s_at(self, depth: float) -> float:
        """From the nearest that is known. That a lesser depth costs less is not reckoned with."""
        known_depth, row_s = min(self._row_s.values(), key=lambda known: abs(known[0] - depth))
        return row_s * max(1.0, (depth + _EVEN_DEPTH) / (known_depth + _EVEN_DEPTH))


def _average(average: float, value: float) -> float:
    return value if average == 0.0 else average + _WEIGHT * (value - average)

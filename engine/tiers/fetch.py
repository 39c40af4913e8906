"""Kv blocks on their way from a tier to the engine: handed over one by one, a few ahead, in order.

Knows neither tiers nor pages. One thread delivers and another takes; either may end it at any time.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import NamedTuple

from engine.tiers.kv_block import KvBlock

MOST_AHEAD = 8
"""Blocks that may lie here, so that a long conversation is not in memory as a whole."""


class Piece(NamedTuple):
    """A block, the position of its first token, and how many of its tokens are those that were asked for."""

    block: KvBlock
    first: int
    num_fitting: int


class Fetch:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._pieces: deque[Piece] = deque()
        self._finished = False
        self._cancelled = False

    @property
    def done(self) -> bool:
        """Nothing is here, and nothing more comes."""
        with self._changed:
            return (self._finished or self._cancelled) and not self._pieces

    @property
    def cancelled(self) -> bool:
        """Nobody takes anything any more."""
        return self._cancelled

    def deliver(self, piece: Piece, *, wait: bool = True) -> bool:
        """Hand over a piece, once there is room (or at once); False if nobody wants it."""
        with self._changed:
            while wait and len(self._pieces) >= MOST_AHEAD and not self._cancelled:
                self._changed.wait()
            if self._cancelled:
                return False
            self._pieces.append(piece)
            self._changed.notify_all()
            return True

    def finish(self) -> None:
        """Say that nothing more comes."""
        with self._changed:
            self._finished = True
            self._changed.notify_all()

    def take(self) -> Piece | None:
        """The next piece, or None if there is none now."""
        with self._changed:
            if not self._pieces:
                return None
            piece = self._pieces.popleft()
            self._changed.notify_all()
            return piece

    def cancel(self) -> None:
        """Want nothing any more."""
        with self._changed:
            self._cancelled = True
            self._pieces.clear()
            self._changed.notify_all()

    def wait(self, timeout_s: float) -> None:
        """Wait until something is here or nothing comes any more, up to so long."""
        with self._changed:
            if not (self._pieces or self._finished or self._cancelled):
                self._changed.wait(timeout_s)

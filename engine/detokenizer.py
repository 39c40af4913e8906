"""Token bytes to text, a piece at a time: whole characters only, and cut before a stop string.

Two halves, because two threads need them. StopFinder works on bytes in the engine's background thread, where the
decision to stop is made. TextDecoder turns the bytes that were let through into text on the stream-back thread.
Neither knows tokens. Each holds back no more than could still matter: the start of a possible stop string, or an
unfinished UTF-8 sequence.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class StopFinder:
    """Finds the stop string that is completed first in a stream of bytes (the longest, where two end together).

    So the answer depends on the text alone and not on where its tokens are cut. A stop string is whole characters, so
    the cut falls between characters.
    """

    __slots__ = ("_held", "_longest", "_stops")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop.encode("utf-8", "surrogatepass") for stop in stops]
        self._longest = max(map(len, self._stops))
        self._held = b""

    def feed(self, piece: bytes) -> tuple[bytes, bool]:
        """The bytes that may be shown now, and whether a stop string follows them. After that, feed nothing more."""
        text = self._held + piece
        found = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        if found:
            self._held = b""
            return text[: min(found)[1]], True
        keep = self._num_undecided(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def flush(self) -> bytes:
        """What was held back, for the stream has ended without completing a stop string."""
        held, self._held = self._held, b""
        return held

    def _num_undecided(self, text: bytes) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        for length in range(min(len(text), self._longest - 1), 0, -1):
            end = text[-length:]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0


class TextDecoder:
    """UTF-8 bytes to text. What can never become a character is replaced by U+FFFD as soon as that is certain."""

    __slots__ = ("_decoder",)

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, piece: bytes, *, final: bool = False) -> str:
        """The characters completed by `piece`; with `final`, also what is left of an unfinished one."""
        return self._decoder.decode(piece, final)

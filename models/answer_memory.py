"""Remembers which tokens an answer was made of, so that the next turn's prompt has the very same.

A model may write "fire|place" where the tokenizer would write "fireplace". Encoding an answer's text anew then yields
other tokens, and everything computed for the answer is lost to the prefix cache. Knows texts and tokens, not chats.
Any thread.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

_MAX_ANSWERS = 512
_MAX_TOKENS = 1 << 18


class AnswerMemory:
    """The latest answers of one model, by their text; the longest unused go first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers: OrderedDict[str, tuple[int, ...]] = OrderedDict()
        self._num_tokens = 0

    def remember(self, text: str, tokens: Sequence[int]) -> None:
        """Keep an answer; of two with one text the newer counts. Empty ones are of no use."""
        if not text or not tokens or len(tokens) > _MAX_TOKENS:
            return
        with self._lock:
            self._num_tokens += len(tokens) - len(self._answers.pop(text, ()))
            self._answers[text] = tuple(tokens)
            while len(self._answers) > _MAX_ANSWERS or self._num_tokens > _MAX_TOKENS:
                _, dropped = self._answers.popitem(last=False)
                self._num_tokens -= len(dropped)

    def recall(self, text: str) -> tuple[int, ...] | None:
        """The tokens of an answer with exactly this text, or None."""
        with self._lock:
            tokens = self._answers.get(text)
            if tokens is not None:
                self._answers.move_to_end(text)
            return tokens

"""Remembers which tokens an answer was made of, so that the next turn's prompt has the very same.

A model may write "fire|place" where the tokenizer would write "fireplace". Encoding an answer's text anew then yields
other tokens, and everything computed for the answer is lost to the prefix cache. Knows texts and tokens, not chats, and
of a store only that it may be wrong: what it gives back is used if it spells the text. Any thread; with a store, a call
may wait for a disk, except that only an unknown text is looked up there.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Protocol

_MAX_ANSWERS = 512
_MAX_TOKENS = 1 << 18


class AnswerStore(Protocol):
    """Where answers outlive the process. Never raises; may forget."""

    def recall(self, text: str) -> Sequence[int] | None:
        """What was remembered for exactly this text."""

    def remember(self, text: str, tokens: Sequence[int], chat: str | None) -> None:
        """Keep an answer, which belongs to a conversation and goes with it; None belongs to nobody."""


class AnswerMemory:
    """The latest answers of one model, by their text; the longest unused go first."""

    def __init__(
        self, store: AnswerStore | None = None, token_bytes: Callable[[int], bytes] = lambda token: b""
    ) -> None:
        """With a store, give the tokenizer's token_bytes: a stored answer that it can't vouch for is not used."""
        self._lock = threading.Lock()
        self._answers: OrderedDict[str, tuple[int, ...]] = OrderedDict()
        self._num_tokens = 0
        self._store = store
        self._token_bytes = token_bytes

    def look_in(self, store: AnswerStore | None, token_bytes: Callable[[int], bytes]) -> None:
        """From now on keep answers in a store too, and look there for what is not here."""
        self._store, self._token_bytes = store, token_bytes

    def remember(self, text: str, tokens: Sequence[int], *, chat: str | None = None, persist: bool = True) -> None:
        """Keep an answer; of two with one text the newer counts. Empty ones are of no use.

        Without `persist` the store gets nothing. `chat` names the conversation for the store.
        """
        if self._keep(text, tokens) and persist and self._store is not None:
            self._store.remember(text, tokens, chat)

    def recall(self, text: str) -> tuple[int, ...] | None:
        """The tokens of an answer with exactly this text, or None."""
        with self._lock:
            tokens = self._answers.get(text)
            if tokens is not None:
                self._answers.move_to_end(text)
                return tokens
        stored = self._store.recall(text) if self._store is not None and text else None
        if stored is None or not self._spells(stored, text):
            return None
        self._keep(text, stored)
        return tuple(stored)

    def clear(self) -> None:
        """Forget all answers; the store is its owner's to clear."""
        with self._lock:
            self._answers.clear()
            self._num_tokens = 0

    def _keep(self, text: str, tokens: Sequence[int]) -> bool:
        if not text or not tokens or len(tokens) > _MAX_TOKENS:
            return False
        with self._lock:
            self._num_tokens += len(tokens) - len(self._answers.pop(text, ()))
            self._answers[text] = tuple(tokens)
            while len(self._answers) > _MAX_ANSWERS or self._num_tokens > _MAX_TOKENS:
                _, dropped = self._answers.popitem(last=False)
                self._num_tokens -= len(dropped)
        return True

    def _spells(self, tokens: Sequence[int], text: str) -> bool:
        """Whether the tokens are this text and nothing else: a control token has no bytes, so none is let in."""
        pieces = [self._token_bytes(token) for token in tokens]
        return all(pieces) and b"".join(pieces).decode("utf-8", "replace") == text

"""One model's answers in the notes, as the memory of answers wants them.

Knows neither texts nor tokens. Looking one up takes a moment of the disk's time on the caller's thread; keeping one is
a job for the thread that `submit` leads to, since the caller streams answers to people.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from engine.tiers.notes import Notes


class StoredAnswers:
    """A models.answer_memory.AnswerStore."""

    def __init__(self, notes: Notes, fingerprint: bytes, submit: Callable[[Callable[[], None]], object]) -> None:
        self._notes = notes
        self._fingerprint = fingerprint
        self._submit = submit
        self._forgotten: set[str] = set()

    def recall(self, text: str) -> tuple[int, ...] | None:
        """What was kept for exactly this text; the caller checks that it spells it."""
        return self._notes.recall_answer(self._fingerprint, text)

    def remember(self, text: str, tokens: Sequence[int], chat: str | None) -> None:
        """Keep an answer, soon."""
        self._submit(partial(self._remember, text, tuple(tokens), chat))

    def forget(self, chat: str) -> None:
        """Keep no answer of this chat any more, whenever it comes."""
        self._forgotten.add(chat)

    def _remember(self, text: str, tokens: tuple[int, ...], chat: str | None) -> None:
        if chat not in self._forgotten:
            self._notes.remember_answer(self._fingerprint, chat, text, tokens)

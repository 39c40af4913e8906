"""Answers outlive the process, and a poisoned or absent store costs no more than an encoding."""

from collections.abc import Callable
from pathlib import Path

import pytest

from engine.tiers.answers import StoredAnswers
from engine.tiers.notes import FILE_NAME, Notes
from models.answer_memory import AnswerMemory, AnswerStore

MODEL, OTHER = b"m" * 16, b"o" * 16
TEXT = "a fireplace"
TOKENS = (1, 2, 3)
PIECES = {1: b"a ", 2: b"fire", 3: b"place", 4: b""}


def token_bytes(token: int) -> bytes:
    return PIECES.get(token, b"")


def memory(notes: Notes, fingerprint: bytes = MODEL) -> AnswerMemory:
    store: AnswerStore = StoredAnswers(notes, fingerprint, lambda job: job())
    return AnswerMemory(store, token_bytes)


def test_a_restart_keeps_answers_and_a_deleted_chat_does_not(tmp_path: Path) -> None:
    notes = Notes(tmp_path)
    memory(notes).remember(TEXT, TOKENS, chat="a")
    notes.close()
    notes = Notes(tmp_path)
    assert memory(notes).recall(TEXT) == TOKENS
    assert memory(notes, OTHER).recall(TEXT) is None
    notes.forget_chat("a")
    assert memory(notes).recall(TEXT) is None
    notes.close()


@pytest.mark.parametrize("poison", [(3, 2, 1), (4, 1, 2, 3), (1, 2, 3, 4), (1, 2), (1, 2, 3, 99), (2**32 - 1,)])
def test_poison_is_not_swallowed(poison: tuple[int, ...], tmp_path: Path) -> None:
    notes = Notes(tmp_path)
    notes.remember_answer(MODEL, None, TEXT, poison)
    assert memory(notes).recall(TEXT) is None
    notes.close()


def test_writing_is_left_to_another_thread_and_may_never_happen(tmp_path: Path) -> None:
    jobs: list[Callable[[], None]] = []
    notes = Notes(tmp_path)
    answers = AnswerMemory(StoredAnswers(notes, MODEL, jobs.append), token_bytes)
    answers.remember(TEXT, TOKENS)
    assert len(jobs) == 1 and not (tmp_path / FILE_NAME).exists()
    assert answers.recall(TEXT) == TOKENS
    notes.close()
    jobs[0]()
    assert memory(notes).recall(TEXT) is None

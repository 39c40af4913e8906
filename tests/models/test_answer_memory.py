"""Answers keep their own tokens, and a chat's next prompt has them."""

from collections.abc import Sequence

import pytest

from models.answer_memory import AnswerMemory
from models.chat_template import ChatTemplate
from models.gguf import open_gguf
from models.library import starter
from models.tokenizer import Tokenizer


def test_the_next_turn_has_the_tokens_that_the_model_wrote() -> None:
    path = starter()
    assert path is not None
    with open_gguf(path) as gguf:
        tokenizer = Tokenizer.from_metadata(gguf.metadata)
        template = ChatTemplate.from_metadata(gguf.metadata, tokenizer)
    text = "A fireplace is warm."
    canonical = tokenizer.encode(text)
    written = [*tokenizer.encode("A fire"), *tokenizer.encode("place is warm.")]
    assert written != canonical and tokenizer.decode(written) == text
    answers = AnswerMemory()
    answers.remember(text, written)
    messages = [
        {"role": "user", "content": "What is a fireplace?"},
        {"role": "assistant", "content": text},
        {"role": "user", "content": "A fireplace is warm."},  # the same text from a person is encoded as ever
    ]
    plain = template.prompt_ids(messages, tokenizer)
    ids = template.prompt_ids(messages, tokenizer, answers=answers)
    start = next(i for i in range(len(ids)) if ids[i : i + len(written)] == written)
    assert ids[start + len(written) :] == plain[start + len(canonical) :]
    assert ids[:start] == plain[:start]


def test_an_unknown_or_trimmed_answer_is_encoded_as_ever() -> None:
    answers = AnswerMemory()
    answers.remember("known", [1, 2])
    assert answers.recall("unknown") is None
    answers.remember("", [1])
    answers.remember("empty", [])
    assert answers.recall("") is None and answers.recall("empty") is None


def test_the_longest_unused_go_first() -> None:
    answers = AnswerMemory()
    for number in range(600):
        answers.remember(str(number), [number])
        answers.recall("0")
    assert answers.recall("0") == (0,)
    assert answers.recall("1") is None
    assert answers.recall("599") == (599,)
    answers.remember("599", [7, 8])
    assert answers.recall("599") == (7, 8)


class Shelf:
    """A store in memory that counts what it is asked."""

    def __init__(self, **answers: Sequence[int]) -> None:
        self.answers: dict[str, Sequence[int]] = dict(answers)
        self.asked: list[str] = []
        self.chats: list[str | None] = []

    def recall(self, text: str) -> Sequence[int] | None:
        self.asked.append(text)
        return self.answers.get(text)

    def remember(self, text: str, tokens: Sequence[int], chat: str | None) -> None:
        self.answers[text] = tuple(tokens)
        self.chats.append(chat)


PIECES = {1: b"fire", 2: b"place", 3: b"fireplace", 4: b"", 5: b"\xc3", 6: b"\xa9"}


def token_bytes(token: int) -> bytes:
    return PIECES.get(token, b"")


def test_a_store_outlives_the_memory() -> None:
    shelf = Shelf()
    AnswerMemory(shelf, token_bytes).remember("fireplace", [1, 2])
    AnswerMemory(shelf, token_bytes).remember("", [1])
    assert shelf.answers == {"fireplace": (1, 2)}
    later = AnswerMemory(shelf, token_bytes)
    assert later.recall("fireplace") == (1, 2) == later.recall("fireplace")
    assert shelf.asked == ["fireplace"], "what is known is not looked up again"
    assert later.recall("") is None and later.recall("fire") is None


def test_what_is_not_to_be_kept_stays_in_memory() -> None:
    shelf = Shelf()
    answers = AnswerMemory(shelf, token_bytes)
    answers.remember("fire", [1], persist=False)
    answers.remember("place", [2], chat="a")
    assert (shelf.answers, shelf.chats) == ({"place": (2,)}, ["a"])
    assert answers.recall("fire") == (1,)
    answers.clear()
    assert answers.recall("fire") is None and answers.recall("place") == (2,)


@pytest.mark.parametrize("tokens", [[2, 1], [1], [1, 2, 4], [4, 3], [3, 99], [3, -1], [3, 2**32 - 1], [], [1, 2, 1]])
def test_a_store_that_is_wrong_is_not_believed(tokens: list[int]) -> None:
    answers = AnswerMemory(Shelf(fireplace=tokens), token_bytes)
    assert answers.recall("fireplace") is None
    answers.remember("fireplace", [3])
    assert answers.recall("fireplace") == (3,)


def test_a_stored_answer_may_end_inside_a_character() -> None:
    shelf = Shelf(**{"fire\ufffd": [1, 5], "é": [5, 6]})
    answers = AnswerMemory(shelf, token_bytes)
    assert answers.recall("fire\ufffd") == (1, 5)
    assert answers.recall("é") == (5, 6)
    assert AnswerMemory(shelf).recall("é") is None, "without a tokenizer nothing can be vouched for"

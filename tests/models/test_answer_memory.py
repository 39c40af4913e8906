"""Answers keep their own tokens, and a chat's next prompt has them."""

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

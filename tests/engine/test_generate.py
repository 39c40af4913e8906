"""The blocking adapter."""

from pathlib import Path

import pytest

from engine.errors import ModelNotLoaded
from engine.fake_loader import ANSWER, fake_loader
from engine.generate import load_blocking, stream
from engine.loading import LoadOptions
from engine.request import Request
from engine.threaded import ThreadedEngine
from models.errors import CorruptFile

OPTIONS = LoadOptions(model=Path("pretend.gguf"), context=512)


@pytest.fixture
def start():
    engines: list[ThreadedEngine] = []

    def make(**options) -> ThreadedEngine:
        engines.append(ThreadedEngine(fake_loader(**options)))
        return engines[-1]

    yield make
    for engine in engines:
        engine.shutdown()


def test_a_conversation_from_text_to_text(start):
    engine = start()
    stages = []
    model = load_blocking(engine, OPTIONS, lambda progress: stages.append(progress.stage))
    prompt = model.chat_template.prompt_ids([{"role": "user", "content": "What is an inglenook?"}], model.tokenizer)
    deltas = list(stream(engine, Request(request_id="a", prompt_ids=tuple(prompt))))
    assert "".join(delta.text for delta in deltas) == ANSWER
    assert deltas[-1].finish_reason == "stop"
    assert model.tokenizer.decode([token for delta in deltas for token in delta.token_ids]) == ANSWER
    assert (stages[0], stages[-1]) == ("Reading", "Preparing kernels")
    assert model.context_length == 512


def test_a_load_that_fails_raises_its_sentence(start):
    with pytest.raises(ModelNotLoaded, match=r"^pretend\.gguf is damaged\.$"):
        load_blocking(start(error=CorruptFile("pretend.gguf is damaged.")), OPTIONS)


def test_closing_the_iterator_aborts_the_request(start):
    engine = start(endless=True, step_s=0.001)
    load_blocking(engine, OPTIONS)
    deltas = stream(engine, Request(request_id="a", prompt_ids=(1,)))
    next(deltas)
    deltas.close()
    # The id is free again: instructions are obeyed in order, so the abort comes before this.
    assert list(stream(engine, Request(request_id="a", prompt_ids=(1,), max_tokens=2)))[-1].finish_reason == "length"


def test_the_iterator_ends_with_the_last_of_n_answers(start):
    engine = start(delay=2)
    load_blocking(engine, OPTIONS)
    deltas = list(stream(engine, Request(request_id="a", prompt_ids=(1,), n=3)))
    for index in range(3):
        assert "".join(delta.text for delta in deltas if delta.index == index) == ANSWER
    assert [delta.usage is not None for delta in deltas] == [False] * (len(deltas) - 1) + [True]

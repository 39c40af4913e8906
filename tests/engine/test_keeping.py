"""Conversations across engines with threads: what a model is opened and closed with, and what is forgotten."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.fake_loader import fake_loader
from engine.generate import load_blocking
from engine.loading import LoadOptions
from engine.threaded import ThreadedEngine
from engine.tiers.disk_limits import DiskLimits
from engine.tiers.settings import TierSettings
from tests.engine.conftest import WAIT_S, Caller

ROOMY = DiskLimits(budget_bytes=1 << 30, reserve_bytes=0, daily_write_bytes=1 << 30)
PROMPT = tuple(range(200))
Start = Callable[..., ThreadedEngine]


@pytest.fixture
def options(tmp_path: Path) -> LoadOptions:
    return LoadOptions(model=Path("a.gguf"), tiers=TierSettings(root=tmp_path, host_bytes=1 << 20, disk=ROOMY))


@pytest.fixture
def start() -> Iterator[Start]:
    engines: list[ThreadedEngine] = []

    def make(options: LoadOptions, **loader) -> ThreadedEngine:
        engines.append(ThreadedEngine(fake_loader(**loader)))
        load_blocking(engines[-1], options)
        return engines[-1]

    yield make
    for engine in engines:
        engine.shutdown(WAIT_S)


def ask(engine: ThreadedEngine, name: str, **request) -> int:
    """Cached tokens of a prompt's answer."""
    last = Caller(engine, name, PROMPT, max_tokens=5, **request).end()
    assert last.usage is not None, last.error
    return last.usage.cached_tokens


def files(options: LoadOptions) -> list[Path]:
    assert options.tiers is not None and options.tiers.root is not None
    return sorted(options.tiers.root.rglob("*.safetensors"))


def test_the_end_of_the_engine_waits_for_what_was_just_computed(start, options):
    first = start(options)
    assert ask(first, "a") == 0
    first.shutdown(WAIT_S)
    assert len(files(options)) == 4
    assert ask(start(options), "b") == 199


def test_a_model_that_makes_room_for_another_leaves_its_conversations(start, options):
    engine = start(options)
    ask(engine, "a")
    load_blocking(engine, LoadOptions(model=Path("b.gguf"), tiers=options.tiers))
    assert ask(engine, "b") == 0
    load_blocking(engine, options)
    assert ask(engine, "c") == 199


def test_a_reload_restores_from_memory(start, options):
    engine = start(options)
    ask(engine, "a")
    events: list[object] = []
    engine.reload(events.append)
    assert ask(engine, "b") == 199


def test_without_settings_nothing_is_kept(start, options):
    engine = start(LoadOptions(model=Path("a.gguf")))
    ask(engine, "a")
    engine.shutdown(WAIT_S)
    assert ask(start(LoadOptions(model=Path("a.gguf"))), "b") == 0


def test_a_chat_that_is_deleted_takes_its_blocks_along(start, options):
    engine = start(options)
    ask(engine, "a", chat="one")
    engine.forget("one")
    engine.shutdown(WAIT_S)
    assert files(options) == []
    assert ask(start(options), "b") == 0


def test_a_chat_shares_what_another_one_keeps(start, options):
    engine = start(options)
    ask(engine, "a", chat="one")
    ask(engine, "b", chat="two")
    engine.forget("one")
    engine.shutdown(WAIT_S)
    assert ask(start(options), "c") == 199


def test_everything_is_forgotten_at_once(start, options):
    engine = start(options)
    ask(engine, "a")
    engine.forget(None)
    assert ask(engine, "b", persist=False) == 0
    engine.shutdown(WAIT_S)
    assert files(options) == []


def test_an_answers_own_tokens_are_known_after_a_restart(start, options):
    engine = start(options)
    caller = Caller(engine, "a", PROMPT, max_tokens=12)
    caller.end()
    tokens = tuple(token for delta in caller.seen for token in delta.token_ids)
    engine.shutdown(WAIT_S)
    again = start(options)
    assert again.model is not None and again.model.answers.recall(caller.text) == tokens


def test_an_answer_that_leaves_no_trace_is_not_known_after_a_restart(start, options):
    engine = start(options)
    texts = []
    for name, request in (("a", {"persist": False}), ("b", {"use_cache": False})):
        caller = Caller(engine, name, PROMPT[: 100 + len(name)], max_tokens=12, **request)
        caller.end()
        texts.append(caller.text)
    engine.shutdown(WAIT_S)
    model = start(options).model
    assert model is not None and [model.answers.recall(text) for text in texts] == [None, None]
    assert files(options) == []

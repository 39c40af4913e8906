"""Conversations across engines with threads: what a model is opened and closed with, and what is forgotten."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engine import keeping, threaded
from engine.fake_loader import fake_loader
from engine.generate import load_blocking
from engine.loading import LoadedModel, LoadOptions
from engine.threaded import ThreadedEngine
from engine.tiers import store as store_module
from engine.tiers.disk_limits import DiskLimits
from engine.tiers.settings import TierSettings
from tests.engine.conftest import WAIT_S, Caller, outcome

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


@pytest.mark.parametrize("aborted", [True, False])
def test_a_chat_that_is_deleted_while_it_answers_leaves_nothing(start, options, aborted):
    """Neither pages nor the answer's tokens, which are known only when it ends."""
    engine = start(options, endless=True, step_s=0.001)
    caller = Caller(engine, "a", PROMPT, max_tokens=150, chat="one")
    while len(caller.seen) < 20:
        caller.next()
    engine.forget("one")
    if aborted:
        engine.abort_request("a")
    caller.end()
    engine.shutdown(WAIT_S)
    assert files(options) == []
    model = start(options).model
    assert model is not None and model.answers.recall(caller.text) is None


def test_a_folder_that_cannot_be_opened_does_not_end_the_engine(start, options, monkeypatch):
    engine = start(LoadOptions(model=Path("b.gguf")))
    monkeypatch.setattr(keeping, "open_store", lambda *arguments: 1 / 0)
    events: queue.Queue = queue.Queue()
    engine.load(options, events.put)
    assert isinstance(outcome(events), LoadedModel)
    assert [ask(engine, name) for name in ("a", "b")] == [0, 199]  # the device's own memory is as good as ever


@pytest.mark.parametrize("call", ["write", "read"])
def test_a_drive_that_hangs_does_not_keep_the_app_from_ending(start, options, monkeypatch, call):
    monkeypatch.setattr(store_module, "MAX_WRITING", 2)  # so that the device still has what the drive did not take
    monkeypatch.setattr(keeping, "SAVE_S", 0.3)
    monkeypatch.setattr(threaded, "CLOSE_S", 0.3)
    first = start(options)
    ask(first, "a")
    first.shutdown(WAIT_S)
    engine = start(replace(options, tiers=replace(options.tiers, host_bytes=0)))
    hangs, gate = threading.Event(), threading.Event()

    def hang(*arguments) -> None:
        hangs.set()
        gate.wait(WAIT_S)

    monkeypatch.setattr(engine._keeping._store._folder, call, hang)
    caller = Caller(engine, "b", (1, *PROMPT) if call == "write" else PROMPT, max_tokens=5)
    assert hangs.wait(WAIT_S)
    if call == "write":
        caller.end()
    began = time.monotonic()
    engine.shutdown(WAIT_S)
    took = time.monotonic() - began
    gate.set()
    assert caller.end().finish_reason == ("length" if call == "write" else "abort")
    assert took < 2.5 and not engine._background.is_alive()

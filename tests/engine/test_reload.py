"""Reload and reset: the model comes afresh, callers stay, and what was computed is forgotten."""

from __future__ import annotations

import queue
from pathlib import Path

import pytest

from engine.errors import DeviceFailed
from engine.fake_loader import ANSWER, fake_loader
from engine.fake_table import Fault
from engine.generate import load_blocking
from engine.loading import LoadedModel, LoadOptions
from engine.threaded import ThreadedEngine
from tests.engine.conftest import WAIT_S, Caller, outcome


@pytest.fixture
def start():
    """start(**fake_loader options): an engine with a model."""
    engines: list[ThreadedEngine] = []

    def make(**options) -> ThreadedEngine:
        engines.append(ThreadedEngine(fake_loader(**options)))
        load_blocking(engines[-1], LoadOptions(model=Path("a.gguf")))
        return engines[-1]

    yield make
    for engine in engines:
        engine.shutdown(WAIT_S)


def test_a_reload_keeps_its_callers_alive(start):
    engine = start(step_s=0.002, delay=3)
    table = engine.model.table
    callers = [Caller(engine, str(n), n=2) for n in range(2)]
    for caller in callers:
        caller.next()
    reloads: list[queue.Queue] = [queue.Queue() for _ in range(3)]
    for events in reloads:
        engine.reload(events.put)
    assert outcome(reloads[-1]).table is not table
    assert table.closed
    for caller in callers:
        while len([delta for delta in caller.seen if delta.finish_reason == "stop"]) < 2:
            caller.next()
        for index in range(2):
            assert "".join(delta.text for delta in caller.seen if delta.index == index) == ANSWER


def test_an_abort_while_reloading_is_answered_at_once(start):
    engine = start(endless=True, step_s=0.001, load_s=0.3)
    caller = Caller(engine, "a")
    caller.next()
    events: queue.Queue = queue.Queue()
    engine.reload(events.put)
    events.get(timeout=WAIT_S)
    engine.abort_request("a")
    assert caller.end().finish_reason == "abort"
    assert isinstance(outcome(events), LoadedModel)
    assert not engine._streams


def test_a_reload_that_fails_says_so_to_all(start, monkeypatch):
    engine = start(endless=True, step_s=0.001)
    caller = Caller(engine, "a")
    caller.next()
    monkeypatch.setattr(engine, "_loader", fake_loader(error=DeviceFailed("The GPU is gone.")))
    engine.reload(lambda event: None)
    assert caller.end().error == "The GPU is gone."


def test_a_reset_forgets_what_was_computed(start):
    engine = start()
    usages = []
    for name in ("a", "b"):
        usages.append(Caller(engine, name, max_tokens=2).end().usage)
    engine.reset()
    usages.append(Caller(engine, "c", max_tokens=2).end().usage)
    assert [usage.cached_tokens for usage in usages] == [0, 1, 0]


@pytest.mark.parametrize("call", ["end_forward", "retire"])
def test_a_lost_device_is_rebuilt_and_requests_go_on(start, monkeypatch, call):
    """The first model's device goes in the midst of two answers; their callers see whole texts and no error."""
    engine = start(step_s=0.002, delay=3, faults=[Fault(call, 9, DeviceFailed("The GPU is gone."))])
    first = engine.model.table
    monkeypatch.setattr(engine, "_loader", fake_loader(step_s=0.002, delay=3))
    callers = [Caller(engine, str(n)) for n in range(2)]
    for caller in callers:
        assert caller.end().finish_reason == "stop"
        assert "".join(delta.text for delta in caller.seen) == ANSWER
    assert first.closed and engine.model.table is not first


def test_a_lost_device_that_cannot_be_had_again_ends_requests_with_the_reason(start, monkeypatch):
    engine = start(endless=True, step_s=0.001, faults=[Fault("retire", 9, DeviceFailed("The GPU is gone."))])
    monkeypatch.setattr(engine, "_loader", fake_loader(error=DeviceFailed("No adapter was found.")))
    last = Caller(engine, "a").end()
    assert (last.finish_reason, last.error) == ("error", "No adapter was found.")
    refused = Caller(engine, "b").end()
    assert (refused.error, refused.error_type) == ("No model is loaded. Open a model first.", "ModelNotLoaded")

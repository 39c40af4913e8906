"""Memory that runs out while the engine answers: who ends, with what words, and that all others go on."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.engine import Engine
from engine.errors import OutOfMemory
from engine.fake_loader import ANSWER, fake_loader
from engine.fake_table import Fault
from engine.generate import load_blocking
from engine.loading import LoadOptions
from engine.request import SamplingParams
from engine.state import EngineState
from engine.threaded import LoadFailed, ThreadedEngine
from tests.engine.conftest import WAIT_S, Caller, outcome

A = LoadOptions(model=Path("a.gguf"))
DEVICE = OutOfMemory("The graphics device refused 3 MB for something")
BIASED = SamplingParams(temperature=0.0, logit_bias=((5, 1.0),))


@pytest.fixture
def start() -> Iterator[Callable[..., ThreadedEngine]]:
    engines: list[ThreadedEngine] = []

    def make(**options) -> ThreadedEngine:
        engines.append(ThreadedEngine(fake_loader(**options)))
        return engines[-1]

    yield make
    for engine in engines:
        engine.shutdown(WAIT_S)


@pytest.mark.parametrize("asks", [{"logprobs": 3}, {"prompt_logprobs": 0}, {"sampling": BIASED}], ids=str)
@pytest.mark.parametrize("joins_later", [False, True])
def test_only_who_asks_for_more_ends(make_driver, asks: dict, joins_later: bool) -> None:
    driver = make_driver(delay=2)
    driver.add("plain", max_tokens=30)
    driver.add("another", max_tokens=30)
    if joins_later:
        for _ in range(6):
            driver.step()
    driver.table.faults.append(Fault("end_forward", driver.table.last_submitted + 1, DEVICE))
    driver.add("more", prompt=(9, 8, 7), max_tokens=5, **asks)
    driver.run()
    assert driver.reason("more") == "error"
    assert "too little memory left for this request" in driver.last("more").error
    assert driver.reason("plain") == driver.reason("another") == "length"
    assert len(driver.tokens("plain")) == 30
    driver.add("again", prompt=(9, 8, 7), max_tokens=5, **asks)
    driver.run()
    assert driver.reason("again") == "length"


def test_who_has_had_the_buffers_before_is_not_to_blame(make_driver) -> None:
    driver = make_driver(delay=2)
    driver.add("old", max_tokens=30, logprobs=1)
    for _ in range(6):
        driver.step()
    driver.table.faults.append(Fault("end_forward", driver.table.last_submitted + 1, DEVICE))
    driver.add("new", prompt=(9, 8, 7), max_tokens=5, sampling=BIASED)
    driver.run()
    assert (driver.reason("old"), driver.reason("new")) == ("length", "error")


def test_where_nobody_asks_for_more_the_step_is_to_blame(make_driver) -> None:
    driver = make_driver(faults=[Fault("end_forward", 1, DEVICE)])
    driver.add("a", max_tokens=5)
    driver.run()
    assert driver.reason("a") == "error"


@pytest.mark.parametrize("call", ["set_pages", "embed", "end_forward"])
def test_the_hosts_memory_ends_a_step_and_no_more(make_driver, call: str) -> None:
    driver = make_driver(faults=[Fault(call, 1, MemoryError())])
    driver.add("a", max_tokens=5)
    driver.run()
    assert driver.reason("a") == "error"
    assert driver.last("a").error.startswith("There is not enough memory for this answer.")
    driver.add("b", max_tokens=5)
    driver.run()
    assert driver.reason("b") == "length"


def test_the_device_is_not_rebuilt_for_want_of_memory(start) -> None:
    engine = start(step_s=0.001, endless=True, faults=[Fault("end_forward", 5, DEVICE)])
    load_blocking(engine, A)
    table = engine.model.table
    assert "too little memory" in Caller(engine, "a", logprobs=1).end().error
    assert Caller(engine, "b", max_tokens=3, logprobs=1).end().finish_reason == "length"
    assert engine.model.table is table


def test_a_load_without_memory_says_so(start) -> None:
    engine = start(error=MemoryError())
    events: queue.Queue = queue.Queue()
    engine.load(A, events.put)
    failed = outcome(events)
    assert isinstance(failed, LoadFailed)
    assert failed.message.startswith("There is not enough memory to load a.gguf. ")


@pytest.mark.parametrize("owner, name", [(Engine, "add_request"), (EngineState, "note_gauges")])
def test_the_engines_thread_outlives_a_host_without_memory(
    start, monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    engine = start()
    load_blocking(engine, A)

    def fail(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fail)
        last = Caller(engine, "a").end()
        assert last.finish_reason == "error"
        assert last.error.startswith("There is not enough memory to go on with this answer.")
    again = Caller(engine, "b")
    assert again.end().finish_reason == "stop"
    assert again.text == ANSWER

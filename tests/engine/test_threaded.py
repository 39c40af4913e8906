"""ThreadedEngine: every request and every load gets its one last word, whatever happens around it."""

from __future__ import annotations

import queue
import threading
import time
from pathlib import Path

import pytest

from engine.engine import Engine
from engine.errors import DeviceFailed
from engine.fake_loader import ANSWER, fake_loader
from engine.fake_table import Fault
from engine.loading import LoadedModel, LoadOptions, LoadProgress
from engine.request import Delta, Request
from engine.threaded import LoadFailed, ThreadedEngine
from tests.engine.conftest import WAIT_S, Caller, outcome

A = LoadOptions(model=Path("a.gguf"))
B = LoadOptions(model=Path("b.gguf"))


@pytest.fixture
def start():
    """start(**fake_loader options): an engine that is shut down afterwards, whose threads must then be gone."""
    engines: list[ThreadedEngine] = []

    def make(**options) -> ThreadedEngine:
        engines.append(ThreadedEngine(fake_loader(**options)))
        return engines[-1]

    yield make
    for engine in engines:
        engine.shutdown(WAIT_S)
        assert not engine._background.is_alive()
        assert engine._stream_back.join(0.0)


@pytest.fixture(autouse=True)
def _books_balance_after_every_step(monkeypatch):
    step = Engine.step

    def checked(engine: Engine) -> None:
        step(engine)
        engine.state.check_integrity()

    monkeypatch.setattr(Engine, "step", checked)


def load(engine: ThreadedEngine, options: LoadOptions = A) -> queue.Queue:
    events: queue.Queue = queue.Queue()
    engine.load(options, events.put)
    return events


def loaded(start, **options) -> ThreadedEngine:
    engine = start(**options)
    assert isinstance(outcome(load(engine)), LoadedModel)
    return engine


def test_an_answer_streams_on_the_stream_back_thread(start):
    engine = loaded(start)
    threads = set()
    done = threading.Event()
    texts = []

    def on_delta(delta: Delta) -> None:
        threads.add(threading.current_thread().name)
        texts.append(delta.text)
        if delta.finish_reason == "stop":
            done.set()

    engine.add_request(Request(request_id="a", prompt_ids=(1,)), on_delta)
    assert done.wait(WAIT_S)
    assert "".join(texts) == ANSWER
    assert threads == {"inglenook-stream-back"}


def test_without_a_model_a_request_says_so(start):
    last = Caller(start(), "a").end()
    assert (last.finish_reason, last.error) == ("error", "No model is loaded. Open a model first.")


def test_a_request_added_while_loading_waits(start):
    engine = start(load_s=0.2)
    events = load(engine)
    caller = Caller(engine, "a")
    assert caller.end().finish_reason == "stop"
    assert isinstance(outcome(events), LoadedModel)


def test_a_failed_load_says_why_to_all_who_waited(start):
    engine = start(load_s=0.1, error=DeviceFailed("No GPU was found. Install a Vulkan driver."))
    events = load(engine)
    caller = Caller(engine, "a")
    assert caller.end().error == outcome(events).message == "No GPU was found. Install a Vulkan driver."
    assert engine.model is None


def test_a_loader_that_breaks_does_not_take_the_thread_along(start):
    engine = start(error=ZeroDivisionError("oops"))
    for _ in range(2):
        failed = outcome(load(engine))
        assert failed.message == "Loading a.gguf failed (ZeroDivisionError: oops)."


def test_an_abort_while_loading_is_answered_at_once(start):
    engine = start(load_s=3.0)
    load(engine)
    caller = Caller(engine, "a")
    engine.abort_request("a")
    started = time.monotonic()
    assert caller.end().finish_reason == "abort"
    assert time.monotonic() - started < 2.0


def test_an_abort_while_loading_ends_each_answer(start):
    engine = start(load_s=3.0)
    load(engine)
    caller = Caller(engine, "a", n=3)
    engine.abort_request("a")
    ends = [(caller.next().index, caller.seen[-1].finish_reason) for _ in range(3)]
    assert sorted(ends) == [(0, "abort"), (1, "abort"), (2, "abort")]


@pytest.mark.parametrize("newer", ["load", "unload", "shutdown"])
def test_a_newer_instruction_cancels_a_load(start, newer):
    engine = start(load_s=0.4)
    events = load(engine)
    assert isinstance(events.get(timeout=WAIT_S), LoadProgress)
    caller = Caller(engine, "a")
    if newer == "load":
        second = load(engine, B)
    else:
        getattr(engine, newer)()
    failed = outcome(events)
    assert isinstance(failed, LoadFailed)
    assert failed.cancelled
    assert caller.end().finish_reason == "abort"
    if newer == "load":
        assert outcome(second).path == B.model
        assert engine.model.path == B.model


def test_of_many_loads_at_once_the_last_wins(start):
    engine = start(load_s=0.05)
    events = [load(engine, LoadOptions(model=Path(f"{n}.gguf"))) for n in range(8)]
    outcomes = [outcome(each) for each in events]
    assert [isinstance(each, LoadedModel) for each in outcomes] == [False] * 7 + [True]
    assert engine.model.name == "7"


def test_loading_what_is_loaded_keeps_it_and_its_requests(start):
    engine = loaded(start, step_s=0.002)
    table = engine.model.table
    caller = Caller(engine, "a")
    caller.next()
    assert outcome(load(engine)).table is table
    assert caller.end().finish_reason == "stop"


@pytest.mark.parametrize("end", ["load", "unload", "reset", "shutdown"])
def test_what_ends_a_model_ends_its_requests_with_abort(start, end):
    engine = loaded(start, endless=True, step_s=0.001)
    table = engine.model.table
    callers = [Caller(engine, str(n)) for n in range(3)]
    for caller in callers:
        caller.next()
    match end:
        case "load":
            assert isinstance(outcome(load(engine, B)), LoadedModel)
        case _:
            getattr(engine, end)()
    assert {caller.end().finish_reason for caller in callers} == {"abort"}
    if end == "reset":
        assert Caller(engine, "again", max_tokens=3).end().finish_reason == "length"
    else:
        engine.shutdown()
        assert table.closed


def test_a_device_that_is_lost_again_and_again_ends_all_requests_and_unloads(start):
    engine = loaded(start, endless=True, step_s=0.001, faults=[Fault("retire", 9, DeviceFailed("The GPU is gone."))])
    callers = [Caller(engine, str(n)) for n in range(3)]
    assert {caller.end().error for caller in callers} == {"The GPU is gone."}
    assert Caller(engine, "next").end().error == "No model is loaded. Open a model first."
    events: queue.Queue = queue.Queue()
    engine.reload(events.put)
    assert isinstance(outcome(events), LoadedModel)
    assert Caller(engine, "after", max_tokens=3).end().finish_reason == "length"


def test_an_error_inside_the_engine_ends_requests_and_not_the_thread(start, monkeypatch):
    engine = loaded(start, endless=True, step_s=0.001)
    caller = Caller(engine, "a")
    caller.next()
    monkeypatch.setattr(engine._engine, "_actions", None)
    assert "TypeError" in caller.end().error
    monkeypatch.undo()
    assert Caller(engine, "b", max_tokens=2).end().finish_reason == "length"


def test_a_second_request_with_an_open_id_leaves_the_first_alone(start):
    engine = loaded(start, step_s=0.002)
    first = Caller(engine, "a")
    second = Caller(engine, "a")
    assert "open already" in second.end().error
    assert first.end().finish_reason == "stop"
    assert first.text == ANSWER


def test_a_callback_that_raises_ends_its_own_request_only(start):
    engine = loaded(start, endless=True, step_s=0.001)
    calls = []

    def broken(delta: Delta) -> None:
        calls.append(delta)
        raise RuntimeError("the caller's own fault")

    engine.add_request(Request(request_id="broken", prompt_ids=(1,)), broken)
    other = Caller(engine, "other", max_tokens=60)
    assert other.end().finish_reason == "length"
    assert len(calls) == 1
    assert "broken" not in engine._streams


def test_a_load_listener_that_raises_does_no_harm(start):
    engine = start()

    def broken(event: object) -> None:
        raise RuntimeError("the caller's own fault")

    engine.load(A, broken)
    assert Caller(engine, "a").end().finish_reason == "stop"


def test_a_callback_may_call_the_engine(start):
    engine = loaded(start)
    second: queue.Queue = queue.Queue()

    def on_delta(delta: Delta) -> None:
        if delta.finish_reason is not None:
            engine.add_request(Request(request_id="b", prompt_ids=(1,), max_tokens=1), second.put)

    engine.add_request(Request(request_id="a", prompt_ids=(1,), max_tokens=1), on_delta)
    assert second.get(timeout=WAIT_S).request_id == "b"


def test_shutdown_inside_a_callback(start):
    engine = loaded(start)
    done = threading.Event()

    def on_delta(delta: Delta) -> None:
        engine.shutdown()
        done.set()

    engine.add_request(Request(request_id="a", prompt_ids=(1,), max_tokens=1), on_delta)
    assert done.wait(WAIT_S)


def test_after_shutdown_the_answer_is_an_error_at_once(start):
    engine = loaded(start)
    engine.shutdown()
    engine.shutdown()
    assert "shut down" in Caller(engine, "a").end().error
    assert outcome(load(engine)).cancelled
    engine.abort_request("a")
    engine.unload()


def test_sixteen_threads_add_and_abort(start):
    engine = loaded(start, delay=3)
    callers: list[Caller] = []

    def client(thread: int) -> None:
        for n in range(8):
            caller = Caller(engine, f"{thread}-{n}", max_tokens=12)
            callers.append(caller)
            if n % 3 == 0:
                engine.abort_request(f"{thread}-{n}")

    threads = [threading.Thread(target=client, args=(thread,)) for thread in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    reasons = [caller.end().finish_reason for caller in callers]
    assert len(reasons) == 128
    assert set(reasons) <= {"length", "abort"}
    assert all(ANSWER.startswith(caller.text) for caller in callers)
    assert not engine._streams


def test_sixteen_clients_on_little_memory_each_get_their_answer(start):
    engine = start(delay=3)
    assert isinstance(outcome(load(engine, LoadOptions(model=Path("a.gguf"), context=96))), LoadedModel)
    table = engine.model.table
    failures: list[str] = []

    def client(thread: int) -> None:
        for n in range(4):
            number = thread * 4 + n
            caller = Caller(engine, str(number), n=1 + number % 3, stop=(("bench",), ())[number % 2])
            if number % 5 == 0:
                caller.next()
                engine.abort_request(str(number))
            ends = []
            while len(ends) < 1 + number % 3:
                reason = caller.next().finish_reason
                ends += [reason] if reason else []
            expected = ANSWER.split("bench")[0] if number % 2 == 0 else ANSWER
            for index in range(1 + number % 3):
                text = "".join(delta.text for delta in caller.seen if delta.index == index)
                if not expected.startswith(text) or (text != expected and "abort" not in ends):
                    failures.append(f"{number}: {text!r}, {ends}")

    threads = [threading.Thread(target=client, args=(thread,)) for thread in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert not failures
    state = engine._engine.state
    while engine._engine.has_work:
        time.sleep(0.001)
    assert not state.ledger and state.slots.num_free == state.slots.count
    assert state.pages.num_free + state.cache.num_pages == table.limits.num_pages


@pytest.mark.parametrize("round_", range(5))
def test_shutdown_races_with_adding(start, round_):
    engine = loaded(start, endless=True)
    callers: list[Caller] = []
    stop = threading.Event()

    def client(thread: int) -> None:
        for n in range(200):
            if stop.is_set():
                break
            callers.append(Caller(engine, f"{thread}-{n}", max_tokens=5))

    threads = [threading.Thread(target=client, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.005 * round_)
    engine.shutdown(WAIT_S)
    stop.set()
    for thread in threads:
        thread.join(WAIT_S)
    assert {caller.end().finish_reason for caller in callers} <= {"length", "abort", "error"}

"""What went wrong in serving engines before, each by its symptom: what takes threads to see."""

from __future__ import annotations

import queue
import threading
import time
from itertools import count
from pathlib import Path

import pytest

from engine.engine import Engine
from engine.errors import DeviceFailed
from engine.fake_loader import ANSWER, fake_loader
from engine.fake_table import FakeTable, Fault, continuation
from engine.generate import load_blocking, stream
from engine.loading import LoadedModel, LoadOptions, LoadProgress
from engine.request import Delta, Request
from engine.threaded import LoadFailed, ThreadedEngine

WAIT_S = 10.0
OPTIONS = LoadOptions(model=Path("a.gguf"), context=512)


@pytest.fixture
def start():
    """start(**fake_loader options): an engine with a model."""
    engines: list[ThreadedEngine] = []

    def make(**options) -> ThreadedEngine:
        engines.append(ThreadedEngine(fake_loader(**options)))
        load_blocking(engines[-1], OPTIONS)
        return engines[-1]

    yield make
    for engine in engines:
        engine.shutdown(WAIT_S)


def ask(engine: ThreadedEngine, name: str, prompt: tuple[int, ...] = (104, 105), **options) -> list[Delta]:
    return list(stream(engine, Request(request_id=name, prompt_ids=prompt, **options)))


def text(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


def from_threads(number: int, work) -> list:
    """work(0) .. work(number - 1) at once, each in a thread, and what they return; what one raises is raised."""
    results: queue.Queue = queue.Queue()
    together = threading.Barrier(number)

    def run(index: int) -> None:
        try:
            together.wait(WAIT_S)
            results.put((index, work(index)))
        except BaseException as error:  # noqa: BLE001 - raised again below
            results.put((index, error))

    for index in range(number):
        threading.Thread(target=run, args=(index,), daemon=True).start()
    found = dict(results.get(timeout=WAIT_S) for _ in range(number))
    for result in found.values():
        if isinstance(result, BaseException):
            raise result
    return [found[index] for index in range(number)]


def test_more_at_once_than_there_are_sequences_does_not_end_the_background_thread(start):
    engine = start(delay=3, step_s=0.001)
    assert engine.model.table.limits.max_slots == 8
    for round_ in range(3):
        answers = from_threads(20, lambda index, round_=round_: ask(engine, f"{round_} {index}"))
        assert {text(answer) for answer in answers} == {ANSWER}
    assert engine._background.is_alive()


def test_with_nothing_to_answer_no_core_is_kept_busy(start, monkeypatch):
    """Neither after many requests nor after one was aborted or refused."""
    steps = count()
    step = Engine.step
    monkeypatch.setattr(Engine, "step", lambda engine: (next(steps), step(engine))[1])
    engine = start(delay=2)
    for number in range(300):
        ask(engine, str(number), max_tokens=1 + number % 3)
    deltas = stream(engine, Request(request_id="left", prompt_ids=(104,)))
    next(deltas)
    deltas.close()
    assert ask(engine, "refused", (104,) * 600)[-1].finish_reason == "error"
    assert ask(engine, "last", max_tokens=1)[-1].finish_reason == "length"
    while engine._engine.has_work:
        time.sleep(0.001)
    taken, spent_s = next(steps), time.process_time()
    time.sleep(0.3)
    assert next(steps) == taken + 1
    assert time.process_time() - spent_s < 0.15


def test_calls_at_once_do_not_mix_up_their_answers(start):
    def drawn(state: int, last: int) -> int:
        return state % 256

    engine = start()
    engine._engine.state.table._next_token = drawn
    prompts = [tuple(range(index, index + 5 + 3 * index)) for index in range(12)]
    for round_ in range(2):  # the second time from the cache
        answers = from_threads(
            12, lambda index, round_=round_: ask(engine, f"{round_} {index}", prompts[index], max_tokens=40)
        )
        for prompt, deltas in zip(prompts, answers, strict=True):
            tokens = [token for delta in deltas for token in delta.token_ids]
            assert tokens == continuation(prompt, 40, drawn)


def test_an_interrupted_answer_does_not_make_the_next_ones_empty(start):
    engine = start(delay=3, step_s=0.001)
    for number in range(10):
        deltas = stream(engine, Request(request_id="same id", prompt_ids=(104, 105)))
        for _ in range(number % 4 + 1):
            next(deltas)
        deltas.close()
        assert text(ask(engine, f"next {number}", (104, 105))) == ANSWER
        assert engine.metrics.snapshot()["requests_finished"]["abort"] == number + 1


def test_reloads_at_once_do_not_race_and_nobody_hears_of_a_lost_device(start):
    """The last one wins, those before it are told so, and an open answer goes on through all of them."""
    engine = start(step_s=0.002, load_s=0.02)
    deltas = stream(engine, Request(request_id="open", prompt_ids=(104, 105)))
    seen = [next(deltas)]

    def reload(index: int) -> LoadedModel | LoadFailed:
        events: queue.Queue = queue.Queue()
        if index % 2:
            time.sleep(0.01 * index)
        engine.reload(events.put)
        while isinstance(event := events.get(timeout=WAIT_S), LoadProgress):
            pass
        return event

    outcomes = from_threads(8, reload)
    models = [outcome for outcome in outcomes if isinstance(outcome, LoadedModel)]
    assert all(outcome.cancelled for outcome in outcomes if isinstance(outcome, LoadFailed))
    assert engine.model in models
    assert [model.table.closed for model in models].count(False) == 1
    seen += deltas
    assert (text(seen), seen[-1].finish_reason) == (ANSWER, "stop")
    assert not engine._losses._times


def test_a_load_replaced_by_another_at_once_leaves_no_second_model_behind(start, monkeypatch):
    engine = start()
    tables: list[FakeTable] = [engine.model.table]
    loader = engine._loader

    def noted(*arguments) -> LoadedModel:
        model = loader(*arguments)
        tables.append(model.table)
        return model

    monkeypatch.setattr(engine, "_loader", noted)

    def load(index: int) -> LoadedModel | LoadFailed:
        events: queue.Queue = queue.Queue()
        engine.load(LoadOptions(model=Path(f"{index}.gguf"), context=512), events.put)
        while isinstance(event := events.get(timeout=WAIT_S), LoadProgress):
            pass
        return event

    outcomes = from_threads(8, load)
    assert engine.model in outcomes
    assert [table.closed for table in tables].count(False) == 1
    assert text(ask(engine, "a")) == ANSWER


def test_a_device_lost_for_want_of_memory_is_had_again_or_the_reason_is_told(start):
    reason = "The GPU is out of memory. Close other programs, or load the model with a smaller context."
    engine = start(delay=3, faults=[Fault("retire", 5, DeviceFailed(reason))])
    engine._loader = fake_loader(delay=3)
    assert text(ask(engine, "goes on")) == ANSWER
    engine._loader = fake_loader(error=DeviceFailed(reason))
    engine.model.table.faults.append(Fault("retire", engine.model.table.last_submitted + 3, DeviceFailed(reason)))
    assert ask(engine, "ends")[-1].error == reason
    assert ask(engine, "later")[-1].error_type == "ModelNotLoaded"
    engine._loader = fake_loader()
    load_blocking(engine, OPTIONS)
    assert text(ask(engine, "again")) == ANSWER

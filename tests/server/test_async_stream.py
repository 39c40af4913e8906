"""The asyncio adapter, the counterpart of generate.stream."""

import asyncio
import time
from pathlib import Path

import pytest

from engine.async_stream import DeltaStream, stream
from engine.fake_loader import ANSWER, fake_loader
from engine.generate import load_blocking
from engine.generate import stream as blocking_stream
from engine.loading import LoadOptions
from engine.request import Request
from engine.threaded import ThreadedEngine


@pytest.fixture
def start():
    engines: list[ThreadedEngine] = []

    def make(**options) -> ThreadedEngine:
        engines.append(ThreadedEngine(fake_loader(**options)))
        load_blocking(engines[-1], LoadOptions(model=Path("pretend.gguf"), context=512))
        return engines[-1]

    yield make
    for engine in engines:
        engine.shutdown()


async def gather(engine, request):
    return [delta async for delta in stream(engine, request)]


def wait_until_idle(engine):
    deadline = time.monotonic() + 3
    while engine._engine.has_work:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_it_says_what_the_blocking_one_says(start):
    engine = start()
    request = Request(request_id="a", prompt_ids=(1,))
    deltas = asyncio.run(gather(engine, request))
    blocking = list(blocking_stream(engine, request))
    assert "".join(delta.text for delta in deltas) == "".join(delta.text for delta in blocking) == ANSWER
    assert [delta.finish_reason for delta in deltas] == [delta.finish_reason for delta in blocking]


def test_cancelling_aborts(start):
    engine = start(endless=True, step_s=0.001)

    async def give_up():
        task = asyncio.ensure_future(gather(engine, Request(request_id="a", prompt_ids=(1,))))
        await asyncio.sleep(0.05)
        assert engine._engine.has_work
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(give_up())
    wait_until_idle(engine)


def test_closing_aborts(start):
    engine = start(endless=True, step_s=0.001)

    async def leave():
        deltas = stream(engine, Request(request_id="a", prompt_ids=(1,)))
        await anext(deltas)
        await deltas.aclose()

    asyncio.run(leave())
    wait_until_idle(engine)


def test_an_abort_from_elsewhere_ends_every_answer_and_brings_the_usage(start):
    engine = start(endless=True, step_s=0.001)

    async def abort_one_of_three():
        deltas = []
        async for delta in stream(engine, Request(request_id="a", prompt_ids=(1,), n=3)):
            deltas.append(delta)
            if len(deltas) == 12:
                engine.abort_request("a")
        return deltas

    deltas = asyncio.run(abort_one_of_three())
    assert sorted(delta.index for delta in deltas if delta.finish_reason == "abort") == [0, 1, 2]
    assert deltas[-1].usage.completion_tokens >= sum(len(delta.token_ids) for delta in deltas)


def test_closing_wakes_a_reader_of_several_answers(start):
    engine = start(endless=True, step_s=0.2)

    async def close_under_a_reader():
        deltas = DeltaStream(engine, Request(request_id="a", prompt_ids=(1,), n=3))
        await deltas.next()
        reader = asyncio.ensure_future(read(deltas))
        await asyncio.sleep(0)
        deltas.close()
        return await asyncio.wait_for(reader, 2)

    async def read(deltas):
        while not deltas.finished:
            last = await deltas.next()
        return last

    assert asyncio.run(close_under_a_reader()).finish_reason == "abort"
    wait_until_idle(engine)


def test_an_error_ends_it(start):
    engine = start()
    (delta,) = asyncio.run(gather(engine, Request(request_id="a", prompt_ids=(10**6,), n=3)))
    assert delta.finish_reason == "error"


def test_a_loop_that_is_gone_is_no_fault_of_the_engine(start, caplog):
    engine = start(endless=True, step_s=0.001)

    async def forget():
        deltas = stream(engine, Request(request_id="a", prompt_ids=(1,)))
        await anext(deltas)
        return deltas

    asyncio.run(forget())
    wait_until_idle(engine)
    assert not caplog.records

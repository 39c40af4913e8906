"""Clients that hang up, several at once, and an endpoint that stops under them."""

import asyncio
import json
import socket
import threading
import time
from pathlib import Path

import openai
import pytest

from engine.async_stream import DeltaStream
from engine.fake_loader import ANSWER, fake_loader
from engine.generate import load_blocking
from engine.loading import LoadOptions
from engine.request import Delta, Request
from engine.server.chat import _first_delta
from engine.server.endpoint import Endpoint, listen
from engine.server.settings import EndpointSettings
from engine.threaded import ThreadedEngine

HELLO = [{"role": "user", "content": "Hi"}]
OPTIONS = LoadOptions(model=Path("pretend.gguf"), context=512)


def post(port, **fields):
    """A chat request on a bare socket, to be hung up on."""
    body = json.dumps({"messages": HELLO, **fields}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    connection = socket.create_connection(("127.0.0.1", port), timeout=10)
    connection.sendall(head.encode() + body)
    return connection


def wait_for(condition, timeout_s=3.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_closing_a_stream_aborts_its_request(serve):
    served = serve(endless=True, step_s=0.002)
    with served.client.chat.completions.create(model="", messages=HELLO, stream=True) as chunks:
        next(iter(chunks))
        assert served.engine._engine.has_work
    served.wait_until_idle()


@pytest.mark.parametrize("stream", [True, False])
def test_hanging_up_aborts_a_request(stream, serve):
    served = serve(endless=True, step_s=0.02)
    connection = post(served.port, stream=stream)
    wait_for(lambda: served.engine._engine.has_work)
    connection.close()
    served.wait_until_idle()
    assert served.chat(max_tokens=2).status == 200


def test_hanging_up_at_any_moment_aborts(serve):
    served = serve(endless=True, step_s=0.005)
    for tenth_ms in range(0, 100, 2):
        connection = post(served.port, stream=tenth_ms % 4 == 0)
        time.sleep(tenth_ms / 10_000)
        connection.close()
    served.wait_until_idle(1.5)


@pytest.mark.parametrize("turns", range(4))
def test_hanging_up_in_the_moment_of_the_first_delta(turns, scripted):
    """A cancellation that meets the delta it waits for must not be lost, else the answer goes on for nobody."""

    async def race():
        deltas = DeltaStream(engine, Request(request_id="a", prompt_ids=(1,)))
        waiting = asyncio.ensure_future(_first_delta(deltas))
        await asyncio.sleep(0)
        deltas._on_delta(Delta(request_id="a", text="One"))
        for _ in range(turns):
            await asyncio.sleep(0)
        if waiting.cancel():
            with pytest.raises(asyncio.CancelledError):
                await waiting

    engine = scripted(lambda _: iter(())).engine
    asyncio.run(race())


def test_hanging_up_in_the_middle_of_the_request(plain):
    connection = socket.create_connection(("127.0.0.1", plain.port))
    connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
    connection.close()
    assert plain.chat().status == 200
    plain.wait_until_idle()


def test_eight_streams_at_once(serve):
    served = serve(step_s=0.001)
    texts = {}

    def read(number):
        chunks = served.client.chat.completions.create(model="", messages=HELLO, stream=True)
        texts[number] = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert texts == dict.fromkeys(range(8), ANSWER)
    served.wait_until_idle()


def test_stopping_ends_streams_with_an_error_and_quickly(serve, caplog):
    served = serve(endless=True, step_s=0.002)
    ended = []

    def read():
        try:
            for chunk in served.client.chat.completions.create(model="", messages=HELLO, stream=True):
                assert chunk.choices
        except openai.APIError as error:
            ended.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    whole = post(served.port)
    wait_for(lambda: len(served.endpoint._chat._open) == 2)
    started = time.monotonic()
    served.endpoint.stop()
    assert time.monotonic() - started < 1.0
    assert not served.endpoint.running
    thread.join(5)
    assert "stopped before its end" in str(ended[0])
    assert whole.recv(100).startswith(b"HTTP/1.1 503")
    whole.close()
    wait_for(lambda: not served.engine._engine.has_work)
    assert not [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")]


def test_stopping_does_not_wait_for_somebody_who_never_finishes_a_request(serve):
    served = serve()
    connection = socket.create_connection(("127.0.0.1", served.port))
    connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
    served.chat()
    started = time.monotonic()
    served.endpoint.stop()
    assert time.monotonic() - started < 2.0
    assert not served.endpoint.running
    connection.close()


def test_unloading_the_model_ends_a_stream_with_an_error(serve):
    served = serve(endless=True, step_s=0.002)
    with (
        pytest.raises(openai.APIError, match="unloaded"),
        served.client.chat.completions.create(model="", messages=HELLO, stream=True) as chunks,
    ):
        for number, _ in enumerate(chunks):
            if number == 3:
                served.engine.unload()


def test_twenty_starts_and_stops_on_one_port_leave_nothing_behind():
    engine = ThreadedEngine(fake_loader(answer="One two."))
    try:
        load_blocking(engine, OPTIONS)
        before = set(threading.enumerate())
        port = 0
        for _ in range(20):
            endpoint = Endpoint(engine, EndpointSettings(), listen("127.0.0.1", (port,)))
            endpoint.start()
            port = int(endpoint.url.split(":")[2].split("/")[0])
            with post(port, max_tokens=1) as connection:
                assert connection.recv(100).startswith(b"HTTP/1.1 200")
            endpoint.stop()
            endpoint.stop()
        wait_for(lambda: set(threading.enumerate()) <= before)
    finally:
        engine.shutdown()


def test_the_first_free_port():
    with listen("127.0.0.1", (0,)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError):
            listen("127.0.0.1", (port,))
        with listen("127.0.0.1", (port, 0)) as other:
            assert other.getsockname()[1] != port

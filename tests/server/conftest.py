"""An endpoint on a free port around a pretend model, or around an engine that says what the test has it say."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import openai
import pytest

from engine.fake_loader import fake_loader
from engine.generate import load_blocking
from engine.loading import LoadedModel, LoadOptions
from engine.request import Delta, Request
from engine.server.endpoint import Endpoint, listen
from engine.server.settings import EndpointSettings
from engine.threaded import ThreadedEngine

OPTIONS = LoadOptions(model=Path("Pretend-1B-Q4_1.gguf"), context=512)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A response as it came."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> dict:
        return json.loads(self.body)

    @property
    def error(self) -> dict:
        return self.json["error"]

    @property
    def events(self) -> list[dict | str]:
        """The data of a stream's events."""
        data = [line.removeprefix("data: ") for line in self.body.decode().split("\n\n") if line]
        return [each if each == "[DONE]" else json.loads(each) for each in data]


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A running endpoint and ways to talk to it."""

    engine: ThreadedEngine
    endpoint: Endpoint
    client: openai.OpenAI

    @property
    def port(self) -> int:
        return int(self.endpoint.url.split(":")[2].split("/")[0])

    def call(self, method: str, path: str, body: object = None, **headers: str) -> Reply:
        """One exchange without a client library. Header names are written with _ for -."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            content = json.dumps(body).encode() if isinstance(body, dict) else body
            connection.request(method, path, content, {key.replace("_", "-"): headers[key] for key in headers})
            response = connection.getresponse()
            return Reply(status=response.status, headers=response.headers, body=response.read())
        finally:
            connection.close()

    def chat(self, **fields: object) -> Reply:
        """POST a chat request about nothing in particular."""
        return self.call("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], **fields})

    def wait_until_idle(self, timeout_s: float = 3.0) -> None:
        """The engine has let go of every request."""
        core = self.engine._engine
        assert core is not None
        deadline = time.monotonic() + timeout_s
        while core.has_work or self.endpoint._chat._open:
            assert time.monotonic() < deadline, "the engine still works for somebody who left"
            time.sleep(0.005)


class ScriptedEngine:
    """The engine's face: each request is answered by script(request), on a thread that is not the endpoint's."""

    def __init__(self, script: Callable[[Request], Iterator[Delta]], model: LoadedModel) -> None:
        self.model = model
        self.requests: list[Request] = []
        self.aborted: list[str] = []
        self._script = script

    def add_request(self, request: Request, on_delta: Callable[[Delta], None]) -> None:
        self.requests.append(request)
        threading.Thread(target=lambda: [on_delta(delta) for delta in self._script(request)]).start()

    def abort_request(self, request_id: str) -> None:
        self.aborted.append(request_id)

    def shutdown(self) -> None:
        pass


def start(engine: object, settings: EndpointSettings | None = None) -> Served:
    settings = settings or EndpointSettings()
    endpoint = Endpoint(engine, settings, listen("127.0.0.1", (0,)))
    endpoint.start()
    client = openai.OpenAI(base_url=endpoint.url, api_key=settings.api_key or "none", max_retries=0, timeout=20)
    return Served(engine=engine, endpoint=endpoint, client=client)


def pretend_engine(*, loaded: bool = True, **options: object) -> ThreadedEngine:
    engine = ThreadedEngine(fake_loader(**options))
    if loaded:
        load_blocking(engine, OPTIONS)
    return engine


def stop(served: Served) -> None:
    served.client.close()
    served.endpoint.stop()
    served.engine.shutdown()


@pytest.fixture(scope="session")
def plain() -> Iterator[Served]:
    """One endpoint for all tests that leave it as it was."""
    served = start(pretend_engine())
    yield served
    stop(served)


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    """serve(engine=None, settings=None, **fake_loader options): an endpoint of the test's own."""
    running: list[Served] = []

    def make(*, engine: object = None, settings: EndpointSettings | None = None, **options: object) -> Served:
        running.append(start(engine or pretend_engine(**options), settings))
        return running[-1]

    yield make
    for served in running:
        stop(served)


@pytest.fixture
def scripted(serve: Callable[..., Served]) -> Callable[..., Served]:
    """scripted(script): an endpoint whose engine answers a request with the deltas of script(request)."""
    model = fake_loader()(OPTIONS, lambda _: None, lambda: False)
    return lambda script, **options: serve(engine=ScriptedEngine(script, model), **options)

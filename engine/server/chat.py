"""POST /v1/chat/completions: one exchange from its body to the last byte of the answer.

Owns the requests that are open over HTTP: their number is bounded, each is aborted once its client hangs up, and all
are when the endpoint stops. Runs on the endpoint's event loop; a worker thread reads the body and tokenizes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager

from starlette.types import Receive, Scope, Send

from engine.async_stream import DeltaStream
from engine.errors import ModelNotLoaded
from engine.loading import LoadedModel
from engine.request import Delta
from engine.server.answer import StreamedAnswer, WholeAnswer, error_event
from engine.server.convert import Asked, read_request
from engine.server.errors import ApiError, of_delta, of_exception
from engine.server.exchange import ClientGone, json_response, read_body, unless_gone
from engine.server.settings import EndpointSettings
from engine.threaded import ThreadedEngine

logger = logging.getLogger(__name__)

# A request that fails does so at once or while it is answered. After this long a stream's head is sent, although its
# status can then tell of no failure any more: a client should see that its prompt is being worked on.
_HEAD_AFTER_S = 1.0
_STREAM_HEAD = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # a proxy in front must not gather the events
]
_STOPPING = "This endpoint is being switched off."
_FAULT = "The endpoint failed while answering. Send the request again; the log has the details."


class ChatCompletions:
    """An ASGI application for the one route."""

    def __init__(self, engine: ThreadedEngine, settings: EndpointSettings, workers: Executor) -> None:
        self._engine = engine
        self._settings = settings
        self._workers = workers
        self._open: set[DeltaStream] = set()
        self._stopping = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await read_body(scope, receive, self._settings.max_body_bytes)
        except ClientGone:
            return
        await unless_gone(receive, self._answer(body, scope, receive, send))

    def stop(self) -> None:
        """Abort all that is open and take in nothing more, so that no connection is cut in the middle of an answer."""
        self._stopping = True
        for deltas in self._open:
            deltas.close()

    async def _answer(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        loop = asyncio.get_running_loop()
        asked = await loop.run_in_executor(self._workers, read_request, body, self._model(), self._settings)
        with self._opened(asked) as deltas:
            if asked.stream:
                await _send_stream(asked, deltas, send)
            else:
                answer = WholeAnswer(asked)
                while not deltas.finished:
                    answer.add(_unless_failed(await deltas.next()))
                await json_response(answer.completion())(scope, receive, send)

    def _model(self) -> LoadedModel:
        model = self._engine.model
        if model is None:
            raise of_exception(ModelNotLoaded("No model is loaded. Open one in Inglenook first."))
        return model

    @contextmanager
    def _opened(self, asked: Asked) -> Iterator[DeltaStream]:
        if self._stopping:
            raise ApiError(503, _STOPPING, code="stopping")
        if len(self._open) >= self._settings.max_open:
            message = f"{len(self._open)} requests are open already. Try again when some have finished."
            raise ApiError(429, message, code="queue_full")
        deltas = DeltaStream(self._engine, asked.request)
        self._open.add(deltas)
        try:
            yield deltas
        finally:
            self._open.discard(deltas)
            deltas.close()


async def _send_stream(asked: Asked, deltas: DeltaStream, send: Send) -> None:
    """Send an answer as it comes. Raises ApiError where it fails before anything was sent."""
    first = await _first_delta(deltas)
    if first is not None:
        _unless_failed(first)
    await send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEAD})
    answer = StreamedAnswer(asked)
    try:
        await _send_part(send, answer.opening() + (answer.chunks(first) if first is not None else b""))
        while not deltas.finished:
            if events := answer.chunks(_unless_failed(await deltas.next())):
                await _send_part(send, events)
        last = answer.closing()
    except ApiError as error:
        last = error_event(error.envelope)
    except Exception:
        # A fault of ours, after the head has gone: the stream's own end is the only place left to tell it.
        logger.exception("A stream failed")
        last = error_event(ApiError(500, _FAULT).envelope)
    await _send_part(send, last, more=False)


async def _first_delta(deltas: DeltaStream) -> Delta | None:
    try:
        async with asyncio.timeout(_HEAD_AFTER_S):  # wait_for() can swallow a cancellation on Python 3.11
            return await deltas.next()
    except TimeoutError:
        return None


async def _send_part(send: Send, body: bytes, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})


def _unless_failed(delta: Delta) -> Delta:
    if delta.finish_reason in ("error", "abort"):
        raise of_delta(delta)
    return delta

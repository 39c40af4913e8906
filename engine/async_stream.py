"""Asyncio use of a ThreadedEngine: one request's deltas, awaited instead of waited for.

The counterpart of engine/generate.py. Knows no HTTP. Everything here is called on one event loop; only the engine's
callback comes from another thread, and it merely wakes that loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from engine.request import Delta, Request
from engine.threaded import ThreadedEngine


class DeltaStream:
    """A request that is open from here until `finished` or close()."""

    def __init__(self, engine: ThreadedEngine, request: Request) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._deltas: asyncio.Queue[Delta] = asyncio.Queue()
        self._open_answers = request.n
        self._closing = Delta(request_id=request.request_id, finish_reason="abort")
        engine.add_request(request, self._on_delta)

    @property
    def finished(self) -> bool:
        """Whether next() has given the request's last delta."""
        return self._open_answers == 0

    async def next(self) -> Delta:
        """The next delta of any of the request's answers. Cancelling this wait loses nothing."""
        delta = await self._deltas.get()
        ends_all = delta.usage is not None or delta.finish_reason == "error" or delta is self._closing
        self._open_answers = 0 if ends_all else self._open_answers - (delta.finish_reason is not None)
        return delta

    def close(self) -> None:
        """Abort the request unless it has ended. Its reader, if one still waits, gets a last delta at once."""
        if not self.finished:
            self._engine.abort_request(self._closing.request_id)
            self._deltas.put_nowait(self._closing)

    def _on_delta(self, delta: Delta) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed while this was under way: nobody reads it now
            self._loop.call_soon_threadsafe(self._deltas.put_nowait, delta)


async def stream(engine: ThreadedEngine, request: Request) -> AsyncGenerator[Delta, None]:
    """The request's deltas. Cancelling the reader, or closing the iterator early, aborts the request."""
    deltas = DeltaStream(engine, request)
    try:
        while not deltas.finished:
            yield await deltas.next()
    finally:
        deltas.close()

"""The stream-back loop: turns emissions into deltas and calls the callers back, on a thread of its own.

Owns the output queue (one condition variable) and each stream's half-decoded character. Knows neither the engine's
state nor the model. push() and close() may be called from any thread; callbacks run on the stream-back thread, one at a
time and in order, with no lock held.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from engine.detokenizer import TextDecoder
from engine.request import Delta
from engine.state import Emission

logger = logging.getLogger(__name__)

Delivery = Callable[[], None]


class Stream:
    """One caller's end of a request. Only the stream-back thread calls deliver().

    `on_broken` is told, once, that the callback raised; nothing is delivered after that.
    """

    __slots__ = ("_broken", "_decoder", "_on_broken", "_on_delta")

    def __init__(self, on_delta: Callable[[Delta], None], on_broken: Callable[[Stream], None]) -> None:
        self._on_delta = on_delta
        self._on_broken = on_broken
        self._decoder = TextDecoder()
        self._broken = False

    def deliver(self, emission: Emission) -> None:
        """Call back with the delta that the emission makes; one that says nothing yet is skipped."""
        if self._broken:
            return
        request_id, token_ids, text_bytes, finish_reason, error, usage, timings = emission
        text = self._decoder.feed(text_bytes, final=finish_reason is not None)
        if not text and not token_ids and finish_reason is None:
            return
        delta = Delta(
            request_id=request_id,
            text=text,
            token_ids=token_ids,
            finish_reason=finish_reason,
            error=error,
            usage=usage,
            timings=timings,
        )
        try:
            self._on_delta(delta)
        except Exception:
            # The caller's code: whatever it raises is its own affair and ends its own stream.
            logger.exception("A callback of request %s raised; the request is aborted", request_id)
            self._broken = True
            self._on_broken(self)


class StreamBack:
    """The thread and its queue."""

    def __init__(self) -> None:
        self._ready = threading.Condition()
        self._deliveries: list[Delivery] = []
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="inglenook-stream-back", daemon=True)
        self._thread.start()

    def push(self, deliveries: Sequence[Delivery]) -> None:
        """Queue deliveries. Never waits for a callback."""
        with self._ready:
            self._deliveries.extend(deliveries)
            self._ready.notify()

    def close(self) -> None:
        """End the thread once everything pushed before is delivered."""
        with self._ready:
            self._closing = True
            self._ready.notify()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread to end; True if it has. Called on that very thread it returns at once."""
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._ready:
                while not self._deliveries and not self._closing:
                    self._ready.wait()
                batch, self._deliveries = self._deliveries, []
            if not batch:
                return
            for delivery in batch:
                try:
                    delivery()
                except Exception:
                    # The thread must outlive any callback (a load's listener, say).
                    logger.exception("A callback raised")

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
from engine.emission import Emission
from engine.request import Delta
from engine.trace import OFF, Trace

logger = logging.getLogger(__name__)

Delivery = Callable[[], None]


class Stream:
    """One caller's end of a request for `num_answers`. Only the stream-back thread calls deliver().

    `on_broken` is told, once, that the callback raised; nothing is delivered after that.
    """

    __slots__ = ("_broken", "_decoders", "_on_broken", "_on_delta", "_open")

    def __init__(
        self, on_delta: Callable[[Delta], None], on_broken: Callable[[Stream], None], num_answers: int = 1
    ) -> None:
        self._on_delta = on_delta
        self._on_broken = on_broken
        self._decoders = [TextDecoder() for _ in range(num_answers)]
        self._open = set(range(num_answers))
        self._broken = False

    def deliver(self, emission: Emission) -> None:
        """Call back with the delta that the emission makes; one that says nothing yet is skipped.

        The request's last word, unless it is an error, is also that of answers which have had none.
        """
        if self._broken:
            return
        index, reason = emission.answer, emission.finish_reason
        if reason is not None:
            self._open.discard(index)
            if emission.ends_request and reason != "error":
                for other in sorted(self._open):
                    text = self._decoders[other].feed(b"", final=True)
                    self._call(Delta(request_id=emission.request_id, index=other, text=text, finish_reason=reason))
        text = self._decoders[index].feed(emission.text, final=reason is not None)
        if not text and not emission.token_ids and reason is None:
            return
        delta = Delta(
            request_id=emission.request_id,
            index=index,
            text=text,
            token_ids=emission.token_ids,
            finish_reason=reason,
            error=emission.error,
            error_type=emission.error_type,
            usage=emission.usage,
            timings=emission.timings,
            logprobs=emission.logprobs,
            prompt_logprobs=emission.prompt_logprobs,
        )
        self._call(delta)

    def _call(self, delta: Delta) -> None:
        if self._broken:
            return
        try:
            self._on_delta(delta)
        except Exception:
            # The caller's code: whatever it raises is its own affair and ends its own stream.
            logger.exception("A callback of request %s raised; the request is aborted", delta.request_id)
            self._broken = True
            self._on_broken(self)


class StreamBack:
    """The thread and its queue."""

    def __init__(self, trace: Trace = OFF) -> None:
        self._trace = trace
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
            with self._trace.span("deliver", len(batch)):
                _deliver(batch)


def _deliver(batch: Sequence[Delivery]) -> None:
    for delivery in batch:
        try:
            delivery()
        except Exception:
            # The thread must outlive any callback (a load's listener, say).
            logger.exception("A callback raised")

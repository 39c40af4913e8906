"""Blocking use of a ThreadedEngine: an iterator over one request's deltas, and a load that returns when it is done.

Knows nothing of what happens in between. Called on any thread but the engine's own two.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from typing import TypeVar

from engine.errors import ModelNotLoaded
from engine.loading import LoadedModel, LoadOptions, LoadProgress
from engine.request import Delta, Request
from engine.threaded import LoadFailed, ThreadedEngine

_T = TypeVar("_T")


def stream(engine: ThreadedEngine, request: Request) -> Iterator[Delta]:
    """The request's deltas until each answer had its finish_reason. Closing the iterator early aborts the request."""
    deltas: queue.SimpleQueue[Delta] = queue.SimpleQueue()
    engine.add_request(request, deltas.put)
    num_open = request.n
    try:
        while num_open:
            delta = _next(deltas)
            if delta.finish_reason is not None:
                num_open = 0 if delta.finish_reason == "error" else num_open - 1
            yield delta
    finally:
        if num_open:
            engine.abort_request(request.request_id)


def load_blocking(
    engine: ThreadedEngine, options: LoadOptions, on_progress: Callable[[LoadProgress], None] | None = None
) -> LoadedModel:
    """Load a model and wait for it. Raises ModelNotLoaded with the sentence that says why it cannot be had."""
    events: queue.SimpleQueue[LoadProgress | LoadedModel | LoadFailed] = queue.SimpleQueue()
    engine.load(options, events.put)
    while True:
        event = _next(events)
        if isinstance(event, LoadedModel):
            return event
        if isinstance(event, LoadFailed):
            raise ModelNotLoaded(event.message)
        if on_progress is not None:
            on_progress(event)


def _next(source: queue.SimpleQueue[_T]) -> _T:
    while True:
        try:
            return source.get(timeout=0.5)  # woken now and then, so that Ctrl-C works on Windows too
        except queue.Empty:
            continue

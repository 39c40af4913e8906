"""The callers of open requests: which stream each request speaks to, and the one last word that each of them gets.

Owns the table from request ids to streams. Knows neither the ledger nor the model. Only the engine's background thread
touches it; what it pushes is delivered by the stream-back thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from engine.emission import Emission
from engine.errors import EngineError
from engine.request import FinishReason
from engine.stream_back import Delivery, Stream, StreamBack


class OpenStreams:
    """A request is in here from the moment it was taken in until its last word is on its way."""

    def __init__(self, stream_back: StreamBack) -> None:
        self._stream_back = stream_back
        self._streams: dict[str, Stream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._streams

    def open(self, request_id: str, stream: Stream) -> None:
        """From now on what the request has to tell goes to this stream."""
        self._streams[request_id] = stream

    def belongs_to(self, request_id: str, stream: Stream) -> bool:
        """Whether the open request of this id is that stream's."""
        return self._streams.get(request_id) is stream

    def forget(self, request_id: str) -> None:
        """The request is to be taken in anew, or answered by other means."""
        del self._streams[request_id]

    def emit(self, emissions: Iterable[Emission]) -> None:
        """Hand emissions over, all in one go; a finished request's stream is let go."""
        deliveries: list[Delivery] = []
        for emission in emissions:
            stream = self._streams.get(emission.request_id)
            if stream is not None:
                deliveries.append(partial(stream.deliver, emission))
                if emission.ends_request:
                    del self._streams[emission.request_id]
        if deliveries:
            self._stream_back.push(deliveries)

    def fail(self, request_id: str, error: Exception) -> None:
        """End a request with the sentence of an error."""
        self.emit([failed(request_id, error)])

    def end_all(self, reason: FinishReason, error: str | None = None) -> None:
        """End whatever is still open."""
        self.emit([Emission(request_id, finish_reason=reason, error=error) for request_id in self._streams])

    def answer(self, stream: Stream, emission: Emission) -> None:
        """Deliver to a stream whose request is not, or no longer, in here."""
        self._stream_back.push([partial(stream.deliver, emission)])


def failed(request_id: str, error: Exception) -> Emission:
    """The end of a request that an error ended; the type is told where it is one of the engine's."""
    error_type = type(error).__name__ if isinstance(error, EngineError) else None
    return Emission(request_id, finish_reason="error", error=str(error), error_type=error_type)

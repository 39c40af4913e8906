"""What callers put into the engine's instruction queue, and what a load answers. Frozen values; any thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine.loading import LoadedModel, LoadOptions, LoadProgress
from engine.metrics import MetricsSnapshot
from engine.request import Request
from engine.stream_back import Stream


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """The last event of a load that yielded no model; `cancelled` where a later instruction made it pointless."""

    message: str
    cancelled: bool = False


LoadEvent = LoadProgress | LoadedModel | LoadFailed


@dataclass(frozen=True, slots=True)
class AddRequest:
    """`arrived` is time.perf_counter() when the caller asked."""

    request: Request
    stream: Stream
    arrived: float


@dataclass(frozen=True, slots=True)
class AbortRequest:
    """With a stream: only if the request is still that stream's."""

    request_id: str
    stream: Stream | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """options None: those of the last load, afresh. `number` counts the instructions that cancel one another."""

    options: LoadOptions | None
    on_event: Callable[[LoadEvent], None]
    number: int


@dataclass(frozen=True, slots=True)
class Unload:
    """Let the model go."""


@dataclass(frozen=True, slots=True)
class Reset:
    """End all requests and forget what is kept for later ones."""


@dataclass(frozen=True, slots=True)
class QueryMetrics:
    """Take a snapshot of the metrics between two steps. Running streams do not notice."""

    on_snapshot: Callable[[MetricsSnapshot], None]


@dataclass(frozen=True, slots=True)
class Forget:
    """Let go of what is kept of one chat and no other has; chat None: of everything. Running streams go on."""

    chat: str | None


Instruction = AddRequest | AbortRequest | Load | Unload | Reset | QueryMetrics | Forget

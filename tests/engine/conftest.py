"""The engine without threads or device: a driver that checks the books after every step. Nothing here waits.

For the tests with threads: a caller that collects a stream's deltas, and a load's outcome.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence

import pytest

from engine.emission import Emission
from engine.engine import Engine
from engine.fake_table import FakeTable
from engine.function_table import TableLimits
from engine.loading import LoadedModel, LoadProgress
from engine.request import Delta, FinishReason, Request
from engine.stream_back import Stream
from engine.threaded import LoadFailed, ThreadedEngine
from engine.tiers.store import KvStore

WAIT_S = 10.0
END = 299
"""The vocabulary's end token; no other id gives it this meaning."""


class ByteVocabulary:
    """Token n < 256 is byte n."""

    stop_ids = frozenset({END})

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else b""


class PieceVocabulary:
    """Token n is pieces[n]. With recite() a table says them in order, then the end token."""

    stop_ids = frozenset({END})
    start = 298

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = pieces

    def token_bytes(self, token: int) -> bytes:
        return self.pieces[token]

    def recite(self, state: int, last: int) -> int:
        following = 0 if last == self.start else last + 1
        return following if following < len(self.pieces) else END


class Driver:
    """An Engine on a FakeTable, stepped by hand; keeps every delta and fails on any second end."""

    def __init__(
        self,
        limits: TableLimits | None = None,
        vocabulary: ByteVocabulary | PieceVocabulary | None = None,
        store: KvStore | None = None,
        **table,
    ) -> None:
        self.vocabulary = vocabulary or ByteVocabulary()
        if isinstance(self.vocabulary, PieceVocabulary):
            table["next_token"] = self.vocabulary.recite
        self._options = table
        self.table = FakeTable(limits, **table)
        self.now = 0.0
        self.store = store
        self.engine = Engine(self.table, self.vocabulary, clock=lambda: self.now, store=store)
        self.deltas: dict[str, list[Delta]] = {}
        self._streams: dict[str, Stream] = {}
        self._num_answers: dict[str, int] = {}

    def add(self, request_id: str = "a", prompt: Sequence[int] = (1, 2, 3), **options) -> str:
        self.engine.add_request(Request(request_id=request_id, prompt_ids=tuple(prompt), **options))
        self.deltas[request_id] = []
        self._streams[request_id] = Stream(self.deltas[request_id].append, _fail_on_broken, options.get("n", 1))
        self._num_answers[request_id] = options.get("n", 1)
        return request_id

    def abort(self, request_id: str) -> None:
        self.engine.abort_request(request_id)
        self._after()

    def reload(self) -> None:
        """Go on in a new engine on a new table, where nothing is computed."""
        carried = self.engine.detach()
        self.table = FakeTable(self.table.limits, **(self._options | {"faults": ()}))
        self.engine = Engine(self.table, self.vocabulary, clock=lambda: self.now, store=self.store)
        self.engine.adopt(carried)
        self._after()

    def step(self) -> None:
        self.now += 1.0
        self.engine.step()
        self._after()

    def run(self, max_steps: int = 3000) -> None:
        """Step until nothing is left; then everything must be free, or in the cache."""
        for _ in range(max_steps):
            if not self.engine.has_work:
                break
            self.step()
        assert not self.engine.has_work, "the engine does not come to an end"
        state = self.engine.state
        assert state.slots.num_free == state.slots.count
        assert state.pages.num_free + state.cache.num_pages == state.pages.count

    def run_until(self, done: Callable[[], object], max_steps: int = 3000) -> None:
        """Step until `done()` is true of what the requests were told."""
        for _ in range(max_steps):
            if done():
                return
            self.step()
        pytest.fail("it does not come to that")

    def clear(self) -> None:
        """Reset the cache; with nothing open every page must be free then."""
        self.engine.clear_cache()
        self._after()
        if not self.engine.has_work:
            assert self.engine.state.pages.num_free == self.engine.state.pages.count

    def answer(self, request_id: str = "a", index: int = 0) -> list[Delta]:
        return [delta for delta in self.deltas[request_id] if delta.index == index]

    def tokens(self, request_id: str = "a", index: int = 0) -> list[int]:
        return [token for delta in self.answer(request_id, index) for token in delta.token_ids]

    def text(self, request_id: str = "a", index: int = 0) -> str:
        return "".join(delta.text for delta in self.answer(request_id, index))

    def last(self, request_id: str = "a") -> Delta:
        return self.deltas[request_id][-1]

    def reason(self, request_id: str = "a", index: int | None = None) -> FinishReason | None:
        """Why the answer ended, or without an index how the request did; None while it is open."""
        if index is not None:
            return next((delta.finish_reason for delta in self.answer(request_id, index) if delta.finish_reason), None)
        reasons = [delta.finish_reason for delta in self.deltas[request_id] if delta.finish_reason is not None]
        ended = len(reasons) == self._num_answers[request_id] or reasons[-1:] == ["error"]
        return reasons[-1] if ended else None

    def cached(self, request_id: str = "a") -> int:
        usage = self.last(request_id).usage
        assert usage is not None
        return usage.cached_tokens

    def _after(self) -> None:
        self.engine.state.check_integrity()
        emission: Emission
        for emission in self.engine.take_outbox():
            assert self.reason(emission.request_id) is None, "something after the end"
            self._streams[emission.request_id].deliver(emission)


class Caller:
    """Adds a request to an engine with threads, and collects its stream's deltas."""

    def __init__(
        self, engine: ThreadedEngine, request_id: str, prompt_ids: tuple[int, ...] = (104, 105), **options
    ) -> None:
        self.deltas: queue.Queue[Delta] = queue.Queue()
        self.seen: list[Delta] = []
        engine.add_request(Request(request_id=request_id, prompt_ids=prompt_ids, **options), self.deltas.put)

    def next(self) -> Delta:
        self.seen.append(self.deltas.get(timeout=WAIT_S))
        return self.seen[-1]

    def end(self) -> Delta:
        while not self.seen or self.seen[-1].finish_reason is None:
            self.next()
        return self.seen[-1]

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.seen)


def outcome(events: queue.Queue) -> LoadedModel | LoadFailed:
    """A load's last event."""
    while isinstance(event := events.get(timeout=WAIT_S), LoadProgress):
        pass
    return event


def _fail_on_broken(stream: Stream) -> None:
    raise AssertionError("the test's own callback raised")


@pytest.fixture
def make_driver() -> Callable[..., Driver]:
    return Driver


@pytest.fixture
def say() -> Callable[..., Driver]:
    """say(pieces, **request options): a driver that has answered one request "a" with these pieces of bytes."""

    def answer(pieces: Sequence[bytes], *, delay: int = 2, **options) -> Driver:
        driver = Driver(vocabulary=PieceVocabulary(pieces), delay=delay)
        driver.add("a", (PieceVocabulary.start,), **options)
        driver.run()
        return driver

    return answer

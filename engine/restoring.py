"""What comes back from below the device: kv blocks on their way from the tiers into pages of the prefix cache.

Owns the sequences that wait for blocks, and the block that is next. A block goes into free pages, and they into the
tree, where a sequence finds them as it finds any other: no action knows from where they came, and whoever needs the
memory may evict them at once. Only the engine's background thread touches it; the tiers deliver from theirs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from engine.function_table import PAGE_SIZE
from engine.memory import Memory
from engine.pacing import Pacer
from engine.prefix_cache import Place
from engine.request_state import RequestState
from engine.tiers.fetch import Fetch, Piece
from engine.tiers.store import Found, KvStore

logger = logging.getLogger(__name__)

MAX_OPEN = 2
"""Sequences for which blocks are fetched at a time; more would push each other's out again."""

PATIENCE_S = 5.0
"""A drive that brings nothing for so long is not waited for any more, nor one that takes so much longer in all than
computing would."""

_MOMENT_S = 0.01


@dataclass(slots=True, eq=False)
class _Restoring:
    """A sequence that waits for its blocks, the one that has arrived, and how far they are in the tree."""

    sequence: RequestState
    tokens: list[int]
    fetch: Fetch
    heard_at: float
    deadline: float
    piece: Piece | None = None
    place: Place | None = None


class Placed(NamedTuple):
    """Bytes for pages, which are held once for whoever loads them, and where the pages belong in the tree."""

    restoring: _Restoring
    tokens: list[int]
    place: Place
    pages: list[int]
    data: bytes


class Restorer:
    """See the module's docstring. Without a store nobody ever waits. `clock` counts seconds."""

    def __init__(
        self, store: KvStore | None, memory: Memory, pacer: Pacer, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._memory = memory
        self._pacer = pacer
        self._clock = clock
        self._open: list[_Restoring] = []

    @property
    def num_open(self) -> int:
        """Sequences whose blocks are on their way."""
        return len(self._open)

    def holds_back(self, sequence: RequestState) -> bool:
        """Whether a waiting sequence has to wait for its blocks. The first time it is asked, it looks for them."""
        if self._store is None or sequence.restored:
            return False
        if any(each.sequence is sequence for each in self._open):
            return True
        request = sequence.request
        if not request.use_cache or sequence.index or request.prompt_logprobs is not None:
            sequence.restored = True
            return False
        tokens = sequence.known_tokens
        match = self._memory.cache.match(tokens, len(tokens) - 1)
        if not self._memory.could_hold(len(tokens), match):
            return False  # it is not admitted now, and would lose what it is brought before it is
        found = self._store.find(tokens, match.num_tokens)
        if found is None or not self._pays(self._store, found):
            sequence.restored = True
            return False
        if len(self._open) >= MAX_OPEN:
            sequence.restored = not found.num_new  # part of a block is not worth waiting in line for
            return not sequence.restored
        now = self._clock()
        deadline = now + PATIENCE_S + found.num_new * (self._pacer.row_seconds(found.start) or 0.0)
        self._open.append(_Restoring(sequence, tokens, self._store.fetch(found, PATIENCE_S), now, deadline))
        return True

    def next_pages(self) -> Placed | None:
        """Pages to be loaded now. Those of whom nothing more comes stop waiting."""
        for restoring in list(self._open):
            fetch = restoring.fetch
            if restoring.sequence.finish_reason is not None:
                self._close(restoring)
                continue
            while (piece := restoring.piece or fetch.take()) is not None:
                restoring.heard_at = self._clock()
                placed = self._place(restoring, piece)
                restoring.piece = None
                if isinstance(placed, Placed):
                    return placed
                if placed == "coming":
                    restoring.piece = piece
                    break
                if placed == "short":
                    self._close(restoring)
                    break
            if restoring.piece is None and restoring in self._open:
                self._close_if_done(restoring)
        return None

    def submitted(self, placed: Placed, last_submitted: int) -> None:
        """The pages are being loaded: from now on they are in the tree."""
        place = self._memory.cache.graft(placed.place, placed.tokens, placed.pages, last_submitted)
        placed.restoring.place = place
        if place is None and placed.restoring in self._open:
            self._close(placed.restoring)

    def wait(self) -> None:
        """Wait a moment for something to arrive, where nothing else can be done."""
        if self._open:
            self._open[0].fetch.wait(_MOMENT_S)

    def close(self) -> None:
        """The engine goes away: nobody waits any more."""
        for restoring in list(self._open):
            self._close(restoring)

    def _place(self, restoring: _Restoring, piece: Piece) -> Placed | Literal["there", "coming", "short"]:
        """Pages for the part of a block that the tree lacks; else why there are none."""
        memory, end = self._memory, piece.first + piece.num_fitting
        place = restoring.place = memory.cache.seek(restoring.tokens, end, restoring.place)
        if place.num_tokens < piece.first:
            return "short"  # what precedes was evicted already
        first_page, end_page = place.num_tokens // PAGE_SIZE, -(-end // PAGE_SIZE)
        if place.num_tokens + memory.cache.num_beyond(place, restoring.tokens, end) >= end:
            return "there"
        if not memory.make_room(end_page - first_page):
            return "coming" if memory.is_coming(end_page - first_page) else "short"
        page_bytes = len(piece.block.data) // -(-len(piece.block.tokens) // PAGE_SIZE)
        offset = (first_page - piece.first // PAGE_SIZE) * page_bytes
        data = piece.block.data[offset : offset + page_bytes * (end_page - first_page)]
        return Placed(restoring, restoring.tokens[:end], place, memory.pages.take(end_page - first_page), data)

    def _close_if_done(self, restoring: _Restoring) -> None:
        now = self._clock()
        late = now - restoring.heard_at > PATIENCE_S or now > restoring.deadline
        if late:
            logger.warning("What is kept of a conversation did not come from the disk in time; it is computed instead")
        if late or restoring.fetch.done:
            self._close(restoring)

    def _close(self, restoring: _Restoring) -> None:
        restoring.fetch.cancel()
        restoring.sequence.restored = True
        self._open.remove(restoring)

    def _pays(self, store: KvStore, found: Found) -> bool:
        """Whether copying is expected to be quicker than computing. Parts of a block are always tried: they are few."""
        row_s = self._pacer.row_seconds(found.start + found.num_tokens)
        return row_s is None or not found.num_new or store.is_quicker(found, row_s * found.num_new)

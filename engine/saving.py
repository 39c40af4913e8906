"""What is to be kept below the device: pages on their way from sequences to the tiers, a kv block at a time.

Owns the queue of kv blocks that are still to be read from the device, one reference in the pool for each of their
pages, and the pace: beside streams that run, reading may take a small share of the device's time. Knows neither where a
block goes (engine/tiers/store.py) nor who needs pages more: who is to be admitted has the reading hurried, a stream
that runs takes the queue's pages, and what was not read by then is computed again one day. Only the engine's background
thread touches it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from engine.function_table import PAGE_SIZE, FunctionTable
from engine.page_pool import Pool
from engine.request_state import RequestState
from engine.tiers.chain import BLOCK_TOKENS, Key, chain
from engine.tiers.kv_block import KvBlock
from engine.tiers.store import KvStore

MIN_TOKENS = 32
"""A shorter sequence is computed sooner than it is looked up."""

SHARE = 0.02
"""Of the device's time that reading may take while somebody waits for tokens."""

PATIENCE_S = 5.0
"""A drive that writes nothing for so long is not waited for any more."""

_FIRST_COST_S = 0.002
_MOST_CREDIT_S = 0.02
_WEIGHT = 0.3
_MOMENT_S = 0.01


@dataclass(frozen=True, slots=True, eq=False)
class Saving:
    """A kv block to be read from these pages, for a sequence, and what its request said about keeping it."""

    parent: Key
    key: Key
    tokens: tuple[int, ...]
    pages: tuple[int, ...]
    persist: bool
    chat: str | None
    owner: RequestState


class Saver:
    """See the module's docstring. Without a store nothing is ever queued."""

    def __init__(self, store: KvStore | None, pages: Pool, table: FunctionTable) -> None:
        self._store = store
        self._pages = pages
        self._table = table
        self._queue: deque[Saving] = deque()
        self._reading: list[Saving] = []
        self._expected: set[tuple[Key, bool]] = set()  # queued or being read
        self._cost_s = _FIRST_COST_S
        self._credit_s = 0.0
        self._hurried = False

    @property
    def num_queued(self) -> int:
        """Kv blocks still to be read."""
        return len(self._queue)

    def note(self, sequence: RequestState, *, whole_blocks: bool = False) -> None:
        """Queue what retired steps computed of a sequence and no tier has yet. It still holds its pages.

        `whole_blocks`: it goes on, and only what was not noted before of its whole blocks is looked at.
        """
        request, num_tokens = sequence.request, sequence.num_retired
        if self._store is None or not request.use_cache or sequence.forgotten or num_tokens < MIN_TOKENS:
            return
        start, root = 0, self._store.root
        if whole_blocks:
            num_tokens -= num_tokens % BLOCK_TOKENS
            if sequence.num_noted:
                start, root = sequence.num_noted, sequence.noted_key
            if num_tokens <= start:
                return
        else:
            self._drop(lambda saving: saving.owner is sequence and len(saving.tokens) < BLOCK_TOKENS)
        tokens = sequence.known_tokens[start:num_tokens]
        blocks = chain(root, tokens)
        for parent, key, positions in blocks:
            block_tokens = tuple(tokens[positions.start : positions.stop])
            if not self._note_block(sequence, parent, key, block_tokens, (start + positions.start) // PAGE_SIZE):
                break
        if whole_blocks:
            sequence.num_noted, sequence.noted_key = num_tokens, blocks[-1][1]
        if request.chat is not None:
            self._store.own(request.chat, [key for _, key, _ in blocks], persist=request.persist)

    def _note_block(
        self, sequence: RequestState, parent: Key, key: Key, tokens: tuple[int, ...], first_page: int
    ) -> bool:
        """Queue a block unless it is kept; False where its pages are gone, so that what follows is out of reach."""
        request = sequence.request
        if (key, request.persist) in self._expected:
            return True
        if self._store is None or self._store.keeps(key, persist=request.persist):
            return True
        pages = tuple(sequence.pages[first_page : first_page - (-len(tokens) // PAGE_SIZE)])
        if min(pages) < 0:
            return False  # left behind by a sliding window
        self._pages.share(pages)
        self._queue.append(Saving(parent, key, tokens, pages, request.persist, request.chat, sequence))
        self._expected.add((key, request.persist))
        return True

    def may_save(self, *, busy: bool) -> bool:
        """Whether a kv block may be read now; `busy`: somebody waits for tokens."""
        if not self._queue or self._store is None:
            self._hurried = False
            return False
        if self._store.is_behind and self._queue[0].persist:
            return False
        return not busy or self._hurried or self._credit_s >= self._cost_s

    def next(self) -> Saving:
        """The kv block to be read now. Its pages are held until the caller, who submits the step, lets them go."""
        saving = self._queue.popleft()
        self._reading.append(saving)
        self._credit_s = max(0.0, self._credit_s - self._cost_s)
        return saving

    def lost(self, saving: Saving) -> bool:
        """Its step was not submitted, or its bytes did not come; False if nobody wants it any more."""
        wanted = saving in self._reading
        if wanted:
            self._reading.remove(saving)
        self._expected.discard((saving.key, saving.persist))
        return wanted

    def arrived(self, saving: Saving, data: bytes, seconds: float) -> None:
        """A kv block was read, in a step that took so long."""
        self._cost_s += _WEIGHT * (seconds - self._cost_s)
        page_bytes = self._table.limits.page_bytes
        if not self.lost(saving) or self._store is None or len(data) != len(saving.pages) * page_bytes:
            return
        num_in_last = (len(saving.tokens) - 1) % PAGE_SIZE + 1
        if num_in_last < PAGE_SIZE:  # behind them may be what another request left there, which is nobody's business
            data = data[:-page_bytes] + self._table.blank_tail(data[-page_bytes:], num_in_last)
        self._store.put(KvBlock(saving.parent, saving.tokens, data), persist=saving.persist)

    def time_passed(self, seconds: float) -> None:
        """A step that computed took so long: what it earns for reading."""
        self._credit_s = min(self._credit_s + SHARE * seconds, max(_MOST_CREDIT_S, self._cost_s))

    def wait(self) -> None:
        """Wait a moment for the disk, where nothing else can be done."""
        if self._store is not None and not self._store.wait_for_disk(_MOMENT_S, PATIENCE_S):
            self.release_held()

    def hurry(self) -> bool:
        """Somebody waits for pages: read what is queued first. Where the disk holds that up give it up; True then."""
        if self._queue and self._store is not None and self._store.is_behind:
            return self.release_held()
        self._hurried = bool(self._queue)
        return False

    def release_held(self) -> bool:
        """Give up what was not read yet, for its pages; False if there is nothing."""
        return self._drop(lambda saving: True)

    def forget(self, chat: str | None) -> None:
        """Keep nothing more of what was computed for a chat until now, or with None for anybody."""
        self._drop(lambda saving: chat is None or saving.chat == chat)
        self._reading = [saving for saving in self._reading if chat is not None and saving.chat != chat]

    def pages_held(self) -> list[int]:
        """Every reference of the queue."""
        return [page for saving in self._queue for page in saving.pages]

    def _drop(self, unwanted: Callable[[Saving], bool]) -> bool:
        gone = [saving for saving in self._queue if unwanted(saving)]
        for saving in gone:
            self._queue.remove(saving)
            self._pages.release(saving.pages, self._table.last_submitted)
            self._expected.discard((saving.key, saving.persist))
        return bool(gone)

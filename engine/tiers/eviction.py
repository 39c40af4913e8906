"""What the kv blocks of all models take on disk, and which of them go when that is too much.

Owns the count of bytes: from a listing, kept up by what this process does, listed anew now and then because others
write too. Does not know what is in a file. Used by the thread that writes; others may only report a removal.

The longest unused goes first, and of those used at one time (file systems count in steps of up to two seconds) the one
furthest from the start of its conversation, for nothing can be done with a block whose parent is gone.
"""

from __future__ import annotations

import errno
import heapq
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from threading import Lock

from engine.tiers.chain import Key
from engine.tiers.files import Files
from engine.tiers.listing import STALE_NS, Listing, Stored, block_name, list_models
from engine.tiers.troubles import Troubles

LISTING_LASTS_S = 30.0
"""How long to trust a listing where other processes may write."""

_NOT_EMPTY = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT)


class Usage:
    """See the module's docstring."""

    def __init__(self, root: Path, budget_bytes: int, files: Files, troubles: Troubles) -> None:
        self._root = root
        self._budget = budget_bytes
        self._files = files
        self._troubles = troubles
        self._lock = Lock()
        self._sizes: dict[tuple[Path, Key, Key], int] = {}
        self._depths: dict[Key, int] = {}
        self._order: list[tuple[int, int, Stored]] = []
        self._owed: set[Path] = set()
        self._listed_at: float | None = None
        self.num_bytes = 0

    @property
    def is_stale(self) -> bool:
        """Whether refresh() is due."""
        return self._listed_at is None or time.monotonic() - self._listed_at > LISTING_LASTS_S

    def refresh(self) -> Listing | None:
        """List everything anew, and remove what a process that died left behind. None where that cannot be done."""
        for path in self._owed.copy():
            if self._unlink(path):
                self._owed.discard(path)
        try:
            listing = list_models(self._files, self._root)
        except OSError as error:
            self._troubles.report("list", error)
            return None
        if listing.unreadable:
            self._troubles.report("list", next(iter(listing.unreadable.values())))
        else:
            self._troubles.heal("list")
        num_bytes = listing.num_bytes - self._clean(listing)
        depths = _depths(listing.blocks)
        order = [(stored.mtime_ns, -depths[stored.key], stored) for stored in listing.blocks]
        heapq.heapify(order)
        with self._lock:
            self._sizes = {(stored.folder, stored.parent, stored.key): stored.size for stored in listing.blocks}
            self._depths, self._order, self.num_bytes = depths, order, num_bytes
            self._listed_at = time.monotonic()
        return listing

    def added(self, stored: Stored) -> None:
        """Count a block that was written."""
        self.removed(stored.folder, stored.parent, stored.key)
        with self._lock:
            self._sizes[stored.folder, stored.parent, stored.key] = stored.size
            self.num_bytes += stored.size
            depth = self._depths[stored.key] = self._depths.get(stored.parent, 0) + 1
            heapq.heappush(self._order, (stored.mtime_ns, -depth, stored))

    def removed(self, folder: Path, parent: Key, key: Key) -> None:
        """Count a block no longer."""
        with self._lock:
            self.num_bytes -= self._sizes.pop((folder, parent, key), 0)

    def make_room(self, size: int) -> list[Stored]:
        """Remove blocks until `size` more bytes are within the budget, or nothing can go; returns what is gone."""
        gone: list[Stored] = []
        while self.num_bytes + size > self._budget:
            with self._lock:
                if not self._order:
                    break
                mtime_ns, depth, stored = heapq.heappop(self._order)
            try:
                fact = self._files.look(stored.path)
            except OSError as error:
                self._complain(error)
                continue
            if fact is not None and fact.mtime_ns != mtime_ns:  # used since it was listed
                with self._lock:
                    heapq.heappush(self._order, (fact.mtime_ns, depth, stored))
            elif self.remove(stored.folder, stored.parent, stored.key, later=False):
                gone.append(stored)
        self.remove_if_empty(stored.folder for stored in gone)
        return gone

    def erase(self, chosen: Callable[[Stored], bool] | None) -> list[Stored]:
        """Remove the chosen ones of all blocks that there are now; None is everything, unfinished ones too."""
        listing = self.refresh() or Listing()
        gone = [
            stored
            for stored in listing.blocks
            if (chosen is None or chosen(stored)) and self.remove(stored.folder, stored.parent, stored.key)
        ]
        if chosen is None:
            for path, _ in listing.temporaries:
                self._unlink(path)
            self._listed_at = None
        self.remove_if_empty(stored.folder for stored in gone)
        return gone

    def remove(self, folder: Path, parent: Key, key: Key, *, later: bool = True) -> bool:
        """Remove a block's file; False where it has to stay for now, and then `later` has it tried again."""
        path = folder / block_name(parent, key)
        if not self._unlink(path):
            if later:
                self._owed.add(path)
            return False
        self.removed(folder, parent, key)
        return True

    def remove_if_empty(self, folders: Iterable[Path]) -> None:
        """Remove those of these models' folders that have nothing in them."""
        for folder in set(folders):
            try:
                self._files.remove_folder(folder)
            except OSError as error:
                if error.errno not in _NOT_EMPTY:
                    self._complain(error, "tidy")
                    continue
            self._troubles.heal("tidy")

    def _clean(self, listing: Listing) -> int:
        """Remove temporary files that nobody writes any more; returns their bytes."""
        num_bytes = 0
        for path, fact in listing.temporaries:
            # A time in the future is no reason to keep one for ever.
            if abs(self._files.now_ns() - fact.mtime_ns) < STALE_NS:
                continue
            if self._unlink(path):
                num_bytes += fact.size
        self.remove_if_empty([*listing.empty_folders, *(path.parent for path, _ in listing.temporaries)])
        return num_bytes

    def _unlink(self, path: Path) -> bool:
        try:
            self._files.remove(path)
        except FileNotFoundError:
            pass  # another process was faster
        except OSError as error:
            self._complain(error)
            return False
        self._troubles.heal("remove")
        return True

    def _complain(self, error: OSError, operation: str = "remove") -> None:
        if not self._files.is_busy(error):
            self._troubles.report(operation, error)


def _depths(blocks: list[Stored]) -> dict[Key, int]:
    """How many blocks there are from the earliest known one to each."""
    parents = {stored.key: stored.parent for stored in blocks}
    depths: dict[Key, int] = {}
    for start in parents:
        key, path = start, list[Key]()
        while key in parents and key not in depths:
            depths[key] = 0  # a circle, which only false names can make, ends here
            path.append(key)
            key = parents[key]
        depth = depths.get(key, 0)
        for passed in reversed(path):
            depth += 1
            depths[passed] = depth
    return depths

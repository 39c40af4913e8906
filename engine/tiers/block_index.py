"""Which kv blocks of one model are on disk, as far as is known without looking.

Owns names only. Knows no files. Any thread: a look-up takes no lock, since each is one look into a dictionary whose
values are replaced and never changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock

from engine.tiers.chain import Key


class BlockIndex:
    """A set of (parent, key), found from either side."""

    def __init__(self) -> None:
        self._parents: dict[Key, Key] = {}
        self._children: dict[Key, tuple[Key, ...]] = {}
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._parents)

    def __contains__(self, block: tuple[Key, Key]) -> bool:
        return self._parents.get(block[1]) == block[0]

    def parent(self, key: Key) -> Key | None:
        """What precedes a block; None where the block is not here."""
        return self._parents.get(key)

    def children(self, parent: Key) -> tuple[Key, ...]:
        """The blocks that follow one."""
        return self._children.get(parent, ())

    def add(self, parent: Key, key: Key) -> None:
        """Add a block, once. A key has one parent; of two, which only false names bring about, the later holds."""
        with self._lock:
            before = self._parents.get(key)
            if before == parent:
                return
            if before is not None:
                self._detach(before, key)
            self._parents[key] = parent
            self._children[parent] = (*self._children.get(parent, ()), key)

    def discard(self, parent: Key, key: Key) -> None:
        """Forget a block, if it is here."""
        with self._lock:
            if self._parents.get(key) == parent:
                del self._parents[key]
                self._detach(parent, key)

    def lineage(self, key: Key) -> list[tuple[Key, Key]]:
        """The block and what precedes it, the earliest known first; empty where the block is not here."""
        blocks: list[tuple[Key, Key]] = []
        while (parent := self._parents.get(key)) is not None and len(blocks) <= len(self._parents):
            blocks.append((parent, key))
            key = parent
        return blocks[::-1]

    def blocks(self) -> set[tuple[Key, Key]]:
        """All of them, as they are now."""
        with self._lock:
            return {(parent, key) for key, parent in self._parents.items()}

    def update(self, before: set[tuple[Key, Key]], found: Iterable[tuple[Key, Key]]) -> None:
        """Take over a listing that was begun when blocks() gave `before`; what was added since then stays."""
        found = set(found)
        for parent, key in before - found:
            self.discard(parent, key)
        for parent, key in found - before:
            self.add(parent, key)

    def _detach(self, parent: Key, key: Key) -> None:
        left = tuple(child for child in self._children.get(parent, ()) if child != key)
        if left:
            self._children[parent] = left
        else:
            self._children.pop(parent, None)

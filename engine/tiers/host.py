"""The host-memory tier: kv blocks in memory, the longest unused let go first, of a conversation its end.

Owns its budget and order of use. Knows neither disk nor device. Any thread; no call waits for anything but its lock.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable

from engine.tiers.chain import Key
from engine.tiers.kv_block import KvBlock


class HostTier:
    """See the module's docstring."""

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._lock = threading.Lock()
        self._blocks: OrderedDict[Key, KvBlock] = OrderedDict()
        self._children: dict[Key, set[Key]] = {}
        self._num_bytes = 0

    @property
    def num_bytes(self) -> int:
        """Bytes of all blocks here."""
        return self._num_bytes

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, key: Key) -> bool:
        return key in self._blocks

    def get(self, key: Key) -> KvBlock | None:
        """The block with this key, or None."""
        with self._lock:
            return self._blocks.get(key)

    def children(self, parent: Key) -> list[KvBlock]:
        """The blocks that may follow another one."""
        with self._lock:
            return [self._blocks[key] for key in self._children.get(parent, ())]

    def put(self, key: Key, block: KvBlock) -> None:
        """Keep a block; lets others go for it."""
        with self._lock:
            if key in self._blocks or len(block.data) > self._budget_bytes:
                return
            self._blocks[key] = block
            self._children.setdefault(block.parent, set()).add(key)
            self._num_bytes += len(block.data)
            while self._num_bytes > self._budget_bytes:
                # A block without what precedes it is of no use, so that the end of a conversation goes first.
                self._drop(next(old for old in self._blocks if old not in self._children))

    def touch(self, keys: Iterable[Key]) -> None:
        """Mark a chain's blocks as used, given from its head on; of one chain the tail goes first."""
        with self._lock:
            for key in reversed(list(keys)):
                if key in self._blocks:
                    self._blocks.move_to_end(key)

    def remove(self, keys: Iterable[Key]) -> None:
        """Forget these, where they are here."""
        with self._lock:
            for key in keys:
                if key in self._blocks:
                    self._drop(key)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._blocks.clear()
            self._children.clear()
            self._num_bytes = 0

    def _drop(self, key: Key) -> None:
        block = self._blocks.pop(key)
        self._num_bytes -= len(block.data)
        siblings = self._children[block.parent]
        siblings.discard(key)
        if not siblings:
            del self._children[block.parent]

"""The kv blocks of one model on disk.

Owns what is written to and read from the model's folder; what goes is eviction's to decide. Knows kv blocks, not what
they are for. contains() and children() answer from memory, on any thread; write() belongs to one thread, and the others
may run beside it on a second one. No lock is held while the disk works, other processes may do the same in the same
folder at any time, and no method raises OSError: what does not work is left out, said once and tried again.

    encode --> <key>-<process>-<nonce>-<n>.tmp --fsync--> rename --> <parent>-<key>.safetensors --fsync of the folder-->
"""

from __future__ import annotations

import errno
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from threading import Lock

from engine.tiers.block_index import BlockIndex
from engine.tiers.chain import Key, next_key
from engine.tiers.disk_limits import DiskLimits, MemoryLedger, WriteLedger
from engine.tiers.eviction import Usage
from engine.tiers.files import Files
from engine.tiers.kv_block import HEAD_BYTES, MAX_PAGES, BadBlock, KvBlock, decode, decode_head, encode
from engine.tiers.listing import Stored, block_name, model_folder
from engine.tiers.troubles import Troubles
from engine.tiers.whole_files import make_folders, read_start, write_whole

logger = logging.getLogger(__name__)

TIME_STEP_NS = 10**6
"""How much older than its parent a block is dated, so that of one conversation the end is given up first."""

_RECENT_NS = 600 * 10**9
_MAX_HEADS = 4096
_NO_BLOCK = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_UNREADABLE = (errno.EIO, errno.EACCES, errno.EPERM)


class BlockFolder:
    """See the module's docstring."""

    def __init__(
        self,
        root: Path,
        fingerprint: bytes,
        page_bytes: int,
        limits: DiskLimits,
        *,
        ledger: WriteLedger | None = None,
        on_gone: Callable[[bytes, list[Key]], None] = lambda fingerprint, keys: None,
        files: Files | None = None,
    ) -> None:
        """`on_gone` hears, on the thread that removes them, which blocks of which model were given up."""
        self._path = model_folder(root, fingerprint)
        self._fingerprint = fingerprint
        self._page_bytes = page_bytes
        self._limits = limits
        self._ledger = ledger or MemoryLedger()
        self._on_gone = on_gone
        self._files = files or Files()
        self._troubles = Troubles(root)
        self._usage = Usage(root, limits.budget_bytes, self._files, self._troubles)
        self._index = BlockIndex()
        self._lock = Lock()
        self._heads: dict[Key, tuple[int, ...]] = {}
        self._times: dict[Key, int] = {}

    @property
    def trouble(self) -> str | None:
        """What keeps the disk from being used, in a sentence; None where nothing does."""
        return self._troubles.text

    @property
    def used_bytes(self) -> int:
        """What the blocks of all models take, as far as is known."""
        return self._usage.num_bytes

    def __len__(self) -> int:
        return len(self._index)

    def contains(self, key: Key) -> bool:
        """Whether the block is here, as far as is known."""
        return self._index.parent(key) is not None

    def children(self, parent: Key) -> tuple[Key, ...]:
        """The blocks here that follow one, as far as is known."""
        return self._index.children(parent)

    def has_lost(self, key: Key) -> bool:
        """Whether a block that should be here is not: another process has cleared the folder, or evicted."""
        parent = self._index.parent(key)
        try:
            return parent is not None and self._files.look(self._path / block_name(parent, key)) is None
        except OSError:
            return False

    def scan(self) -> None:
        """Look what is there, remove what dead processes left unfinished, and keep to the budget."""
        before = self._index.blocks()
        listing = self._usage.refresh()
        if listing is None or self._path in listing.unreadable:
            return
        self._index.update(before, ((at.parent, at.key) for at in listing.blocks if at.folder == self._path))
        self._make_room(0)

    def write(self, block: KvBlock) -> bool:
        """Put a block on disk; False where it is there already, or cannot or should not be."""
        parent, key = block.parent, block.key
        if (parent, key) in self._index:
            return False
        try:
            if self._usage.is_stale:
                self.scan()
            return self._may_write(len(block.data)) and self._write(block, key)
        except FileNotFoundError:
            return False  # somebody forgets everything at this moment
        except OSError as error:
            self._troubles.report("write", error)
            return False

    def read(self, parent: Key, key: Key) -> KvBlock | None:
        """The block, verified; None where it is not here or not what it should be, and then it is removed."""
        try:
            file = self._load(parent, key, None)
            if file is None:
                return None
            block = decode(file, self._fingerprint, self._page_bytes)
            if block.parent != parent or block.key != key:
                raise BadBlock("it is another block's")
        except BadBlock as reason:
            self._drop(parent, key, str(reason))
            return None
        self._remember_head(key, block.tokens)
        return block

    def head(self, parent: Key, key: Key) -> tuple[int, ...] | None:
        """The block's tokens, which its key vouches for; from memory where they were read before."""
        tokens = self._heads.get(key)
        if tokens is not None:
            return tokens
        try:
            file = self._load(parent, key, HEAD_BYTES)
            if file is None:
                return None
            found = decode_head(file, self._fingerprint, self._page_bytes)
            if found.parent != parent or next_key(parent, found.tokens) != key:
                raise BadBlock("it is another block's")
        except BadBlock as reason:
            self._drop(parent, key, str(reason))
            return None
        self._remember_head(key, found.tokens)
        return found.tokens

    def touch(self, blocks: Sequence[tuple[Key, Key]]) -> None:
        """Count (parent, key), in their conversation's order, and all that precedes the first, as used now."""
        if not blocks:
            return
        now = self._files.now_ns()
        # The first one first: at no instant does an end look newer than what it depends on.
        for position, (parent, key) in enumerate([*self._index.lineage(blocks[0][0]), *blocks]):
            if (parent, key) not in self._index:
                continue
            mtime_ns = now - position * TIME_STEP_NS
            try:
                self._files.set_time(self._path / block_name(parent, key), mtime_ns)
            except FileNotFoundError:
                self._forget(parent, key)
            except OSError as error:
                if not self._files.is_busy(error):
                    self._troubles.report("use", error)
            else:
                self._times[key] = mtime_ns
                self._troubles.heal("use")

    def remove(self, blocks: Iterable[tuple[Key, Key]]) -> None:
        """Remove (parent, key) where they are here; one that another process has open may have to stay."""
        for parent, key in blocks:
            if (parent, key) in self._index and self._usage.remove(self._path, parent, key):
                self._forget(parent, key)
        self._usage.remove_if_empty([self._path])

    def forget(self, fingerprint: bytes, keys: Collection[Key]) -> None:
        """Remove blocks of any model, whoever wrote them."""
        folder = model_folder(self._path.parent, fingerprint)
        self._forget_stored(self._usage.erase(lambda stored: stored.folder == folder and stored.key in keys))

    def forget_all(self) -> None:
        """Remove all blocks of all models, and what is being written."""
        self._forget_stored(self._usage.erase(None))

    def _may_write(self, size: int) -> bool:
        """Whether so many bytes are allowed; raises OSError with ENOSPC where the disk is as full as we may make it."""
        if size > self._limits.budget_bytes:
            return False
        if self._ledger.written_today() + size > self._limits.daily_write_bytes:
            self._troubles.report("write", "As much has been written today as is good for the drive.")
            return False
        there = self._files.look(self._path)
        if there is None:
            make_folders(self._files, self._path)
        elif not there.is_folder:
            raise NotADirectoryError(errno.ENOTDIR, "The model's folder is something else")
        _, free = self._files.disk_space(self._path)
        if free - size < self._limits.reserve_bytes:
            raise OSError(errno.ENOSPC, "The reserve is reached")
        return True

    def _write(self, block: KvBlock, key: Key) -> bool:
        parent, path = block.parent, self._path / block_name(block.parent, key)
        file = encode(block, self._fingerprint)
        there = self._files.look(path)
        if there is not None and (not there.is_file or there.size == len(file)):
            if there.is_file:  # another process has written it
                self._usage.added(Stored(self._path, parent, key, there.size, there.mtime_ns))
                self._index.add(parent, key)
            return False
        mtime_ns = self._time_after(parent)  # before anything goes, since it saves what precedes this block
        self._make_room(len(file))
        if self._usage.num_bytes + len(file) > self._limits.budget_bytes:
            return False
        if not write_whole(self._files, path, key, file, mtime_ns):
            return False
        self._usage.added(Stored(self._path, parent, key, len(file), mtime_ns))
        self._ledger.note_written(len(file))
        self._times[key] = mtime_ns
        self._remember_head(key, block.tokens)
        self._index.add(parent, key)
        self._files.sync_folder(self._path)  # where this fails the block is there, and can be lost with the power
        self._troubles.heal("write")
        return True

    def _time_after(self, parent: Key) -> int:
        """The time to give a block behind `parent`, which is used by this."""
        now = self._files.now_ns()
        if not 0 <= now - self._times.get(parent, 0) < _RECENT_NS:
            self.touch(self._index.lineage(parent))
        return min(now, self._times.get(parent, now) - TIME_STEP_NS)

    def _load(self, parent: Key, key: Key, most: int | None) -> bytes | None:
        """A file's bytes, or its first `most`; None where it cannot be had. Raises BadBlock if it cannot be right."""
        if (parent, key) not in self._index:
            return None
        path, longest = self._path / block_name(parent, key), HEAD_BYTES + MAX_PAGES * self._page_bytes
        try:
            file = read_start(self._files, path, most, longest)
        except OSError as error:
            if self._files.is_busy(error):
                return None
            if error.errno in _UNREADABLE:
                raise BadBlock("it cannot be read") from None
            if error.errno in _NO_BLOCK:
                self._forget(parent, key)
            else:
                self._troubles.report("read", error)
            return None
        self._troubles.heal("read")
        return file

    def _drop(self, parent: Key, key: Key, reason: str) -> None:
        logger.warning("Dropped the kv block %s of the prefix cache: %s.", key.hex(), reason)
        self._usage.remove(self._path, parent, key)
        self._forget(parent, key)

    def _make_room(self, size: int) -> None:
        self._forget_stored(self._usage.make_room(size))

    def _forget_stored(self, gone: Iterable[Stored]) -> None:
        lost: defaultdict[Path, list[Key]] = defaultdict(list)
        for stored in gone:
            lost[stored.folder].append(stored.key)
            if stored.folder == self._path:
                self._forget(stored.parent, stored.key)
        for folder, keys in lost.items():
            self._on_gone(bytes.fromhex(folder.name), keys)

    def _forget(self, parent: Key, key: Key) -> None:
        self._index.discard(parent, key)
        self._usage.removed(self._path, parent, key)
        self._times.pop(key, None)
        with self._lock:
            self._heads.pop(key, None)

    def _remember_head(self, key: Key, tokens: tuple[int, ...]) -> None:
        with self._lock:
            self._heads[key] = tokens
            if len(self._heads) > _MAX_HEADS:
                del self._heads[next(iter(self._heads))]

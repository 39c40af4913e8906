"""The tiers below the device behind one face: what is kept of conversations, in memory and on disk.

Owns the host tier, the threads that read and write the disk, and the measured speed of the disk. What the folder, the
notes and the files look like is their own business; pages and sequences are the engine's. The engine's background
thread calls it and never waits here; other threads may call forget_chat(), forget_all() and flush().
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from engine.tiers.answers import StoredAnswers
from engine.tiers.chain import BLOCK_TOKENS, Key, chain, root_key
from engine.tiers.fetch import Fetch, Piece
from engine.tiers.forgetting import forget_kept
from engine.tiers.host import HostTier
from engine.tiers.kv_block import KvBlock, num_pages
from engine.tiers.worker import Worker

if TYPE_CHECKING:
    from engine.tiers.folder import BlockFolder
    from engine.tiers.notes import Counter, Notes

logger = logging.getLogger(__name__)

MAX_WRITING = 64
"""Blocks that may wait for the disk; a disk that is slower than the conversations gets no more."""

MAX_CANDIDATES = 64
"""Blocks whose tokens are looked at to find one that begins as wanted."""

_FIRST_S_PER_BYTE = 1 / 200e6
_HOST_S_PER_BYTE = 1 / 2e9
_WEIGHT = 0.2
_FORGIVENESS = 0.9
"""By which a drive that was found too slow is thought quicker the next time, so that it is tried again one day."""


@dataclass(frozen=True, slots=True)
class Found:
    """A way to continue some tokens: whole blocks from position `start` on, then perhaps a part of another one.

    num_tokens are in the blocks, and num_new of them are more than the caller has. `rest` is what the part of a block
    after `parent` would have to begin with.
    """

    start: int
    blocks: tuple[tuple[Key, Key], ...]
    num_new: int
    num_bytes: int
    on_disk_bytes: int
    parent: Key
    rest: tuple[int, ...]
    need: int
    """Tokens of `rest` that the caller has: a part is of use if it has more."""

    @property
    def num_tokens(self) -> int:
        return BLOCK_TOKENS * len(self.blocks)


class KvStore:
    """See the module's docstring. Without a folder everything is in memory only, and gone with the process."""

    def __init__(
        self,
        fingerprint: bytes,
        page_bytes: int,
        host: HostTier,
        folder: BlockFolder | None,
        notes: Notes | None,
        model_name: str = "",
    ) -> None:
        self.fingerprint = fingerprint
        self.root = root_key(fingerprint)
        self._roots = {self.root}
        self._block_bytes = page_bytes * num_pages(BLOCK_TOKENS)
        self._host = host
        self._folder = folder
        self._notes = notes
        self._s_per_byte = _FIRST_S_PER_BYTE
        self._writing: set[Key] = set()
        self.num_put = 0
        """Blocks that were put so far."""
        self._chats: dict[str, set[Key]] = {}  # what this process has of each
        # Two, so that a long conversation from a slow drive holds up no other.
        self._readers = (Worker("inglenook-restore-1"), Worker("inglenook-restore-2"))
        self._writer = Worker("inglenook-keep")
        self.answers = None if notes is None else StoredAnswers(notes, fingerprint, self._writer.submit)
        if notes is not None and model_name:
            self._writer.submit(partial(notes.note_model, fingerprint, model_name))

    def begin_anew(self) -> None:
        """Take every block from now on for one that is not here, as a measurement of writing wants it."""
        self.root = root_key(os.urandom(16))
        self._roots.add(self.root)

    @property
    def num_writing(self) -> int:
        """Blocks that wait for the disk or are being written."""
        return len(self._writing)

    @property
    def is_behind(self) -> bool:
        """Whether the disk has as much to do as it should: nothing more should be put that is to be persisted."""
        return len(self._writing) >= MAX_WRITING

    def wait_for_disk(self, timeout_s: float, patience_s: float) -> bool:
        """Wait until something was written, up to so long; False if the disk has been silent beyond the patience."""
        self._writer.wait(timeout_s)
        return self._writer.busy_s < patience_s

    def keeps(self, key: Key, *, persist: bool) -> bool:
        """Whether a block need not be put: it is where it should be, or gets there from memory."""
        folder, block = self._folder, self._host.get(key)
        if not persist or folder is None:
            return block is not None
        if key in self._writing or folder.contains(key):
            return True
        if block is None:
            return False
        # A disk that takes nothing at present is tried with one block at a time.
        if not (self.is_behind or (folder.trouble is not None and self._writing)):
            self._write_soon(folder, key, block)
        return True

    def put(self, block: KvBlock, *, persist: bool) -> None:
        """Keep a block: in memory now, on disk soon unless `persist` is False or the disk is far behind."""
        self.num_put += 1
        key, siblings = block.key, self._host.children(block.parent)
        if not any(_begins(block.tokens, sibling.tokens) for sibling in siblings):
            self._host.put(key, block)
            self._host.remove([sibling.key for sibling in siblings if _begins(sibling.tokens, block.tokens)])
        if persist and self._folder is not None and not self.is_behind:
            self._write_soon(self._folder, key, block)

    def own(self, chat: str, keys: Sequence[Key], *, persist: bool) -> None:
        """These blocks are part of a chat, and may go when no chat has them any more."""
        self._chats.setdefault(chat, set()).update(keys)
        if persist and self._notes is not None:
            self._writer.submit(partial(self._notes.own, chat, self.fingerprint, list(keys)))

    def find(self, tokens: Sequence[int], have: int) -> Found | None:
        """How to get beyond the first `have` tokens; None where nothing is kept. The last token is not needed."""
        host, folder = self._host, self._folder
        start = have // BLOCK_TOKENS * BLOCK_TOKENS
        parent = self.root
        blocks: list[tuple[Key, Key]] = []
        on_disk = 0
        for before, key, positions in chain(self.root, tokens):
            whole = len(positions) == BLOCK_TOKENS
            if positions.start >= start:
                in_host = key in host
                if not whole or not (in_host or (folder is not None and folder.contains(key))):
                    break
                blocks.append((before, key))
                on_disk += 0 if in_host else 1
            parent = key
        end = start + BLOCK_TOKENS * len(blocks)
        rest = tuple(tokens[end : min(end + BLOCK_TOKENS, len(tokens) - 1)])
        has_more = bool(host.children(parent)) or (folder is not None and bool(folder.children(parent)))
        num_new = end - have
        if num_new <= 0 and not (has_more and len(rest) > have - end):
            if len(tokens) - have > BLOCK_TOKENS:
                self._note("misses", 1)
            return None
        return Found(
            start=start,
            blocks=tuple(blocks),
            num_new=max(0, num_new),
            num_bytes=self._block_bytes * len(blocks),
            on_disk_bytes=self._block_bytes * on_disk,
            parent=parent,
            rest=rest if has_more else (),
            need=max(0, have - end),
        )

    def is_quicker(self, found: Found, seconds: float) -> bool:
        """Whether the whole blocks will be in memory within so many seconds, as far as one can tell."""
        from_disk = found.on_disk_bytes * self._s_per_byte
        if from_disk + (found.num_bytes - found.on_disk_bytes) * _HOST_S_PER_BYTE < seconds:
            return True
        self._s_per_byte *= _FORGIVENESS
        return False

    def fetch(self, found: Found, patience_s: float) -> Fetch:
        """Begin to bring what was found. Nothing comes where the disk has been silent for longer than the patience."""
        fetch = Fetch()
        if found.on_disk_bytes or (self._folder is not None and found.rest):
            reader = min(self._readers, key=lambda each: (each.busy_s > patience_s, each.num_jobs))
            if reader.busy_s > patience_s or not reader.submit(partial(self._read, found, fetch)):
                fetch.finish()
        else:
            self._read(found, fetch, wait=False)
        return fetch

    def forget(self, chat: str | None) -> None:
        """Let go of what only this chat has, or with None of everything, of every model.

        Returns at once; it is done when flush() has returned. Any thread.
        """
        if chat is None:
            self._chats.clear()
            self._host.clear()
        else:
            gone = self._chats.pop(chat, set())
            self._host.remove(gone.difference(*self._chats.values()))
            if self.answers is not None:
                self.answers.forget(chat)
        self._writer.submit(partial(self._forget, chat))

    def clear_host(self) -> None:
        """Let go of what is in memory; the disk stays."""
        self._host.clear()

    def flush(self, timeout_s: float) -> bool:
        """Wait until what was put is on disk; False if that took too long."""
        return self._writer.flush(timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Write what waits, and end the threads; False if that takes longer. They end then when they can."""
        deadline = time.monotonic() + timeout_s
        if self._notes is not None:
            self._writer.submit(self._notes.close)
        for reader in self._readers:
            reader.close(0.0)  # what they bring nobody wants any more
        return self._writer.close(max(0.0, deadline - time.monotonic()))

    def _note(self, counter: Counter, count: int) -> None:
        if self._notes is not None:
            self._writer.submit(partial(self._notes.add, counter, count))

    def _write_soon(self, folder: BlockFolder, key: Key, block: KvBlock) -> None:
        self._writing.add(key)
        if not self._writer.submit(partial(self._write, folder, key, block)):
            self._writing.discard(key)

    # -- the writer's thread

    def _write(self, folder: BlockFolder, key: Key, block: KvBlock) -> None:
        """Put a block on disk, and what precedes it if another process has removed that."""
        try:
            if folder.has_lost(block.parent):
                folder.scan()
            missing = [block]
            while not folder.contains(missing[-1].parent) and (above := self._host.get(missing[-1].parent)) is not None:
                missing.append(above)
            if missing[-1].parent not in self._roots and not folder.contains(missing[-1].parent):
                return  # without what precedes it nothing would ever lead to it
            for each in reversed(missing):
                self._write_one(folder, each)
        finally:
            self._writing.discard(key)

    def _write_one(self, folder: BlockFolder, block: KvBlock) -> None:
        """Put a block on disk, unless a longer one says the same, in the place of any that it goes on from."""
        key = block.key
        siblings = folder.children(block.parent)[:MAX_CANDIDATES]
        known = [(sibling, folder.head(block.parent, sibling) or ()) for sibling in siblings if sibling != key]
        if any(_begins(block.tokens, head) for _, head in known):
            return
        if folder.write(block):
            folder.remove([(block.parent, sibling) for sibling, head in known if _begins(head, block.tokens)])

    def _forget(self, chat: str | None) -> None:
        if self._notes is not None:
            gone = forget_kept(self._notes, self._folder, chat)
            self._host.remove(gone.get(self.fingerprint, ()))

    # -- a reader's thread, or the engine's where all is in memory

    def _read(self, found: Found, fetch: Fetch, *, wait: bool = True) -> None:
        used: list[tuple[Key, Key]] = []
        num_tokens = 0
        try:
            complete = True
            for index, (parent, key) in enumerate(found.blocks):
                block = self._get(parent, key)
                first = found.start + BLOCK_TOKENS * index
                if block is None or not fetch.deliver(Piece(block, first, BLOCK_TOKENS), wait=wait):
                    complete = False
                    break
                used.append((parent, key))
                num_tokens += BLOCK_TOKENS
            if complete and found.rest and (best := self._best_part(found)) is not None:
                block, num_fitting = best
                if fetch.deliver(Piece(block, found.start + num_tokens, num_fitting), wait=wait):
                    used.append((block.parent, block.key))
                    num_tokens += num_fitting
        finally:
            fetch.finish()
        self._host.touch([key for _, key in used])
        if used:
            self._writer.submit(partial(self._note_use, used, num_tokens))

    def _note_use(self, used: Sequence[tuple[Key, Key]], num_tokens: int) -> None:
        if self._folder is not None:
            self._folder.touch(used)
        if self._notes is not None:
            self._notes.add("hits", 1)
            self._notes.add("restored_blocks", len(used))
            self._notes.add("restored_tokens", num_tokens)

    def _get(self, parent: Key, key: Key) -> KvBlock | None:
        block = self._host.get(key)
        if block is None and self._folder is not None:
            started = time.perf_counter()
            block = self._folder.read(parent, key)
            if block is not None:
                seconds = (time.perf_counter() - started) / len(block.data)
                self._s_per_byte += _WEIGHT * (seconds - self._s_per_byte)
                self._host.put(key, block)
        return block

    def _best_part(self, found: Found) -> tuple[KvBlock, int] | None:
        """The block after found.parent that begins with most of the rest, and with how many tokens of it."""
        parent, rest = found.parent, found.rest
        heads = {block.key: block.tokens for block in self._host.children(parent)}
        if self._folder is not None:
            for key in self._folder.children(parent)[:MAX_CANDIDATES]:
                head = None if key in heads else self._folder.head(parent, key)
                if head is not None:
                    heads[key] = head
        by_length = sorted(((_common(head, rest), key) for key, head in heads.items()), reverse=True)
        for length, key in by_length:
            if length <= found.need:
                return None
            block = self._get(parent, key)
            if block is not None:
                return block, length
        return None


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    length = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        length += 1
    return length


def _begins(head: Sequence[int], tokens: Sequence[int]) -> bool:
    """Whether `head` is only the beginning of `tokens`."""
    return 0 < len(head) < len(tokens) and tuple(head) == tuple(tokens[: len(head)])

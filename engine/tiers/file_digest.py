"""The content of a model's files as digests: every byte counts, and a file that lies untouched is not read again.

Owns the hashing in pieces by several threads, and when a remembered digest may be trusted. Knows no file format. A
worker thread calls; it may take seconds per gigabyte.

A remembered digest is used while path, size, both times, inode and device are what they were, and only if the times
were more than two seconds old when the file was read: a later change then has another time, even on file systems that
count in such steps. On POSIX the second time is that of the last change to content or attributes, which no program can
set, so a change that restores size and modification time is seen. On Windows it is the time of creation: there, a
change that keeps the size and restores the modification time goes unseen.
"""

from __future__ import annotations

import hashlib
import os
import struct
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

PIECE_BYTES = 32 << 20
_READ_BYTES = 1 << 20
_MAX_THREADS = 4
_DIGEST_BYTES = 32
_SETTLED_NS = 2_000_000_000


class DigestNotes(Protocol):
    """Where digests are remembered: engine/tiers/notes.py."""

    def note_file_digest(self, path: bytes, identity: str, digest: bytes) -> None: ...
    def file_digest(self, path: bytes, identity: str) -> bytes | None: ...


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """What the system says of a file; equal as long as nobody touched it (see the module's docstring)."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    device: int

    def __str__(self) -> str:
        return f"{self.size} {self.mtime_ns} {self.ctime_ns} {self.inode} {self.device}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDigest:
    """A file's content (32 bytes of digest) and the identity that it had while it was read."""

    path: Path
    identity: FileIdentity
    digest: bytes

    @property
    def unchanged(self) -> bool:
        """Whether the file is still the one that was read: ask after the weights were copied."""
        try:
            return identity_of(self.path) == self.identity
        except OSError:
            return False


def identity_of(path: Path) -> FileIdentity:
    """The identity of the file at `path`, links followed. Raises OSError."""
    found = path.stat()
    return FileIdentity(found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev)


def digest_files(
    paths: Sequence[Path], notes: DigestNotes | None = None, cancelled: Callable[[], bool] = lambda: False
) -> tuple[FileDigest, ...] | None:
    """Digests of the files in their order; None where it was cancelled. Raises OSError where one can't be read.

    A file that changes while it is read gets some digest and none that is remembered.
    """
    digests: list[FileDigest] = []
    for path in paths:
        digest = _digest_file(path, notes, cancelled)
        if digest is None:
            return None
        digests.append(digest)
    return tuple(digests)


def _digest_file(path: Path, notes: DigestNotes | None, cancelled: Callable[[], bool]) -> FileDigest | None:
    began_ns = time.time_ns()
    identity = identity_of(path)
    name = os.fsencode(path.absolute())
    known = notes.file_digest(name, str(identity)) if notes is not None else None
    if known is not None and len(known) == _DIGEST_BYTES:
        return FileDigest(path=path, identity=identity, digest=known)
    content = _digest_content(path, identity.size, cancelled)
    if content is None:
        return None
    settled = max(identity.mtime_ns, identity.ctime_ns) < began_ns - _SETTLED_NS
    if notes is not None and settled and identity_of(path) == identity:
        notes.note_file_digest(name, str(identity), content)
    return FileDigest(path=path, identity=identity, digest=content)


def _digest_content(path: Path, size: int, cancelled: Callable[[], bool]) -> bytes | None:
    """A digest of the pieces' digests and lengths, so that threads can share a file."""
    starts = range(0, size, PIECE_BYTES)
    num_threads = max(1, min(_MAX_THREADS, len(starts), os.cpu_count() or 1))
    with ThreadPoolExecutor(num_threads, "inglenook-hash") as threads:
        pieces = list(threads.map(lambda start: _digest_piece(path, start, cancelled), starts))
    digest = hashlib.blake2b(struct.pack("<QQ", size, PIECE_BYTES), digest_size=_DIGEST_BYTES)
    for piece in pieces:
        if piece is None:
            return None
        digest.update(piece)
    return digest.digest()


def _digest_piece(path: Path, start: int, cancelled: Callable[[], bool]) -> bytes | None:
    """Length and digest of one piece, None where it was cancelled. Reading and hashing release the GIL."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    buffer = memoryview(bytearray(_READ_BYTES))
    done = 0
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        while done < PIECE_BYTES:
            if cancelled():
                return None
            count = file.readinto(buffer[: PIECE_BYTES - done])
            if not count:
                break
            digest.update(buffer[:count])
            done += count
    return struct.pack("<Q", done) + digest.digest()

"""Writes a kv block's file so that it is there whole or not at all, and reads one without trusting what it is.

Owns the order of the steps: written under another name, on the drive, dated, renamed. A process that dies between any
two of them leaves at most a file with a temporary name. Does not know whether there is room. Off the engine's thread.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from pathlib import Path

from engine.tiers.chain import Key
from engine.tiers.files import Files
from engine.tiers.kv_block import BadBlock
from engine.tiers.listing import temporary_name


def make_folders(files: Files, path: Path) -> None:
    """Create a folder and what is missing above it, for the owner only."""
    if files.look(path) is None:
        make_folders(files, path.parent)
        with suppress(FileExistsError):  # another process was faster
            files.make_folder(path)


def write_whole(files: Files, path: Path, key: Key, data: bytes, mtime_ns: int) -> bool:
    """Write and rename the file at `path`; False where another process has it open.

    Raises OSError. Leaves nothing behind that can be removed.
    """
    temporary = path.parent / temporary_name(key)
    try:
        descriptor = files.create(temporary)
    except FileNotFoundError:  # another process removed the folder while it was empty
        make_folders(files, path.parent)
        descriptor = files.create(temporary)
    renaming = False
    try:
        _fill(files, descriptor, data)
        files.set_time(temporary, mtime_ns)
        renaming = True
        files.replace(temporary, path)
    except OSError as error:
        with suppress(OSError):  # if it has to stay, a later scan removes it
            files.remove(temporary)
        if renaming and files.is_busy(error):
            return False
        raise
    return True


def read_start(files: Files, path: Path, most: int | None, longest: int) -> bytes:
    """A file's bytes, or its first `most`. Raises OSError, and BadBlock for one of more than `longest` bytes."""
    descriptor, fact = files.open(path)
    try:
        if not fact.is_file:
            raise FileNotFoundError(errno.ENOENT, "It is no plain file")
        if fact.size > longest:
            raise BadBlock("it is too long")
        parts: list[bytes] = []
        left = fact.size if most is None else min(most, fact.size)
        while left and (part := files.read(descriptor, left)):
            parts.append(part)
            left -= len(part)
    finally:
        files.close(descriptor)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _fill(files: Files, descriptor: int, data: bytes) -> None:
    try:
        left = memoryview(data)
        while left:
            left = left[files.write(descriptor, left) :]
        files.sync(descriptor)
    finally:
        files.close(descriptor)

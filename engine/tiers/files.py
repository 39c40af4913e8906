"""The system calls of the disk tier, one method each.

Every file of the cache is reached through here and nowhere else, so that a test can let each call fail or be the last.
Knows no names, formats or budgets. Each method raises OSError and leaves no descriptor behind when it does. Any thread.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
import time
from pathlib import Path
from typing import NamedTuple

_COMMON = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)


class Fact(NamedTuple):
    """What a directory or an open file tells of a file. A symbolic link is neither a file nor a folder."""

    name: str
    is_file: bool
    is_folder: bool
    size: int
    mtime_ns: int


class Files:
    """See the module's docstring. Has no state."""

    def now_ns(self) -> int:
        """The clock that file times are set from."""
        return time.time_ns()

    def make_folder(self, path: Path) -> None:
        """Create one folder, for the owner only."""
        os.mkdir(path, 0o700)

    def remove_folder(self, path: Path) -> None:
        """Remove an empty folder."""
        os.rmdir(path)

    def list_folder(self, path: Path) -> list[Fact]:
        """Everything in a folder; what vanishes meanwhile is left out."""
        facts: list[Fact] = []
        with os.scandir(path) as entries:
            for entry in entries:
                try:
                    facts.append(_fact(entry.name, entry.stat(follow_symlinks=False)))
                except FileNotFoundError:
                    continue
        return facts

    def look(self, path: Path) -> Fact | None:
        """What is at a path; None where nothing is."""
        try:
            return _fact(path.name, os.stat(path, follow_symlinks=False))
        except FileNotFoundError:
            return None

    def create(self, path: Path) -> int:
        """A descriptor to write a new file with, for the owner only."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _COMMON, 0o600)

    def open(self, path: Path) -> tuple[int, Fact]:
        """A descriptor to read a file with. What is no plain file, a pipe for one, does not keep us waiting."""
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _COMMON)
        try:
            return descriptor, _fact(path.name, os.fstat(descriptor))
        except OSError:
            os.close(descriptor)
            raise

    def read(self, descriptor: int, size: int) -> bytes:
        """Up to `size` bytes, fewer at any time, none at the end."""
        return os.read(descriptor, size)

    def write(self, descriptor: int, data: memoryview) -> int:
        """How many bytes of `data` were taken, at least one."""
        written = os.write(descriptor, data)
        if not written:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return written

    def sync(self, descriptor: int) -> None:
        """Wait until the file's bytes are on the drive."""
        os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        """Give the descriptor back, which happens even where an error is raised."""
        os.close(descriptor)

    def set_time(self, path: Path, mtime_ns: int) -> None:
        """Set when a file was last used."""
        if os.utime in os.supports_follow_symlinks:
            os.utime(path, ns=(mtime_ns, mtime_ns), follow_symlinks=False)
        else:
            os.utime(path, ns=(mtime_ns, mtime_ns))

    def replace(self, source: Path, target: Path) -> None:
        """Give a file its name, in place of what had it, in one step."""
        os.replace(source, target)

    def sync_folder(self, path: Path) -> None:
        """Wait until the names in a folder are on the drive, where the system has a way to."""
        if sys.platform == "win32":
            return
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _COMMON)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that know no such thing
                raise
        finally:
            os.close(descriptor)

    def remove(self, path: Path) -> None:
        """Remove a file."""
        os.unlink(path)

    def disk_space(self, path: Path) -> tuple[int, int]:
        """(all, free) bytes of the file system at a path; free is what this account may use."""
        usage = shutil.disk_usage(path)
        return usage.total, usage.free

    def is_busy(self, error: OSError) -> bool:
        """Whether a file could not go only because somebody has it open, which Windows does not allow."""
        return sys.platform == "win32" and isinstance(error, PermissionError)


def _fact(name: str, status: os.stat_result) -> Fact:
    mode = status.st_mode
    return Fact(name, stat.S_ISREG(mode), stat.S_ISDIR(mode), status.st_size, status.st_mtime_ns)

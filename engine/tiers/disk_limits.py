"""How much of the disk the cache may take, leave and write.

Owns the numbers and their defaults, and the plain way to count a day's writes. Does not know what is written. Pure,
except that default_limits() looks at the disk; call it off the engine's thread.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from engine.tiers.files import Files
from engine.tiers.listing import list_models

GIB = 2**30

MAX_BUDGET_BYTES = 32 * GIB
MAX_RESERVE_BYTES = 2 * GIB
DAILY_WRITE_BYTES = 16 * GIB
UNKNOWN_DISK_BUDGET_BYTES = GIB
"""The budget where the disk does not say how large it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskLimits:
    """What holds before each write."""

    budget_bytes: int
    """The most that the kv blocks of all models take together."""
    reserve_bytes: int
    """Free space that stays free."""
    daily_write_bytes: int
    """The most that is written in a day, for the drive's sake."""


class WriteLedger(Protocol):
    """Counts what is written in a day. Never raises."""

    def written_today(self) -> int:
        """Bytes."""

    def note_written(self, num_bytes: int, /) -> None:
        """Count so many bytes more."""


class MemoryLedger:
    """A ledger that forgets when the process ends. Days are UTC's."""

    def __init__(self) -> None:
        self._day = 0
        self._written = 0

    def written_today(self) -> int:
        """Bytes."""
        today = int(time.time() // 86400)
        if today != self._day:
            self._day, self._written = today, 0
        return self._written

    def note_written(self, num_bytes: int, /) -> None:
        """Count so many bytes more."""
        self._written = self.written_today() + num_bytes


def default_limits(root: Path, files: Files | None = None) -> DiskLimits:
    """A quarter of what is free or ours, under fixed ceilings. The root need not exist yet."""
    files = files or Files()
    try:
        total, free = files.disk_space(_existing(root, files))
        used = sum(stored.size for stored in list_models(files, root).blocks)
    except OSError:
        return DiskLimits(
            budget_bytes=UNKNOWN_DISK_BUDGET_BYTES,
            reserve_bytes=MAX_RESERVE_BYTES,
            daily_write_bytes=DAILY_WRITE_BYTES,
        )
    reserve = min(MAX_RESERVE_BYTES, total // 20)
    return DiskLimits(
        budget_bytes=min(MAX_BUDGET_BYTES, max(0, free + used - reserve) // 4),
        reserve_bytes=reserve,
        daily_write_bytes=DAILY_WRITE_BYTES,
    )


def _existing(path: Path, files: Files) -> Path:
    """The path, or the nearest folder above it that exists."""
    while files.look(path) is None and path != path.parent:
        path = path.parent
    return path

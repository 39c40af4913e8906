"""What the user said about keeping conversations, and the tiers that follow from it for a loaded model.

Owns the defaults of the host tier. Knows no requests. open_store() runs on the engine's background thread after a load
and lists the folder, which takes milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil

from engine.tiers.disk_limits import DiskLimits, default_limits
from engine.tiers.fingerprint import FINGERPRINT_BYTES
from engine.tiers.folder import BlockFolder
from engine.tiers.forgetting import forget_kept
from engine.tiers.host import HostTier
from engine.tiers.notes import Notes
from engine.tiers.store import KvStore

MAX_HOST_BYTES = 4 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class TierSettings:
    """root: the folder on disk, None to keep everything in memory only. host_bytes None: an eighth of the computer's
    memory, 4 GiB at most. disk None: derived from what is free."""

    root: Path | None
    host_bytes: int | None = None
    disk: DiskLimits | None = None


def open_store(settings: TierSettings, fingerprint: bytes, page_bytes: int, model_name: str) -> KvStore | None:
    """The tiers of a model; None for one without a fingerprint, of which nothing could be told apart."""
    if not fingerprint:
        return None
    host = HostTier(default_host_bytes() if settings.host_bytes is None else settings.host_bytes)
    if settings.root is None:
        return KvStore(fingerprint, page_bytes, host, None, None)
    notes = Notes(settings.root)
    limits = settings.disk or default_limits(settings.root)
    folder = BlockFolder(settings.root, fingerprint, page_bytes, limits, ledger=notes, on_gone=notes.disown)
    folder.scan()  # at once, so that the first request finds what there is
    return KvStore(fingerprint, page_bytes, host, folder, notes, model_name)


def forget_on_disk(root: Path, chat: str | None) -> None:
    """Let go of what only this chat has, or with None of everything, where no model is loaded."""
    notes = Notes(root)
    folder = BlockFolder(root, bytes(FINGERPRINT_BYTES), 1, default_limits(root))
    forget_kept(notes, folder, chat)
    notes.close()


def default_host_bytes() -> int:
    """Memory for kv blocks, where nobody said how much."""
    return min(MAX_HOST_BYTES, int(psutil.virtual_memory().total) // 8)

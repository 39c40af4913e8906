"""The cache's folder as a person asks about it: what it holds, and all of it gone.

Owns no state and needs no model, no GPU and none of the threads that serve conversations; other processes may use the
folder at the same time. Does not know the notes. May take as long as the disk takes; the command line's main thread.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.tiers.files import Files
from engine.tiers.listing import Listing, list_models


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelUsage:
    """The kv blocks of one model."""

    fingerprint: bytes
    blocks: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheUsage:
    """What lies under a root: the largest model first. `bytes` counts unfinished files too."""

    bytes: int
    blocks: int
    models: tuple[ModelUsage, ...]
    trouble: str | None
    """Why some of it could not be looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleared:
    """What went, and the sentences about what could not."""

    freed_bytes: int
    removed_blocks: int
    left: tuple[str, ...]


def usage(root: Path) -> CacheUsage:
    """What is stored under `root`; nothing where there is no such folder. Never raises OSError."""
    try:
        listing = list_models(Files(), root)
    except OSError as error:
        return CacheUsage(bytes=0, blocks=0, models=(), trouble=_sentence("be read", root, error))
    sizes: defaultdict[str, list[int]] = defaultdict(list)
    for stored in listing.blocks:
        sizes[stored.folder.name].append(stored.size)
    models = [ModelUsage(fingerprint=bytes.fromhex(n), blocks=len(s), bytes=sum(s)) for n, s in sizes.items()]
    unreadable = [_sentence("be read", folder, error) for folder, error in listing.unreadable.items()]
    return CacheUsage(
        bytes=listing.num_bytes,
        blocks=len(listing.blocks),
        models=tuple(sorted(models, key=lambda model: (-model.bytes, model.fingerprint))),
        trouble=" ".join(unreadable) or None,
    )


def free_bytes(root: Path) -> int | None:
    """What this account may still write to the disk of `root`, which need not exist; None where nobody knows."""
    files = Files()
    try:
        while files.look(root) is None and root != root.parent:
            root = root.parent
        return files.disk_space(root)[1]
    except OSError:
        return None


def clear(root: Path) -> Cleared:
    """Remove the kv blocks of all models, and files that were being written. Never raises OSError.

    What a process is writing at this moment may be there afterwards; what it has in memory certainly is.
    """
    files = Files()
    try:
        listing = list_models(files, root)
    except OSError as error:
        return Cleared(freed_bytes=0, removed_blocks=0, left=(_sentence("be read", root, error),))
    left = [_sentence("be read", folder, error) for folder, error in listing.unreadable.items()]
    blocks = _remove(files, [(stored.path, stored.size) for stored in listing.blocks], left)
    others = _remove(files, [(path, fact.size) for path, fact in listing.temporaries], left)
    _remove_folders(files, listing)
    return Cleared(freed_bytes=sum(blocks) + sum(others), removed_blocks=len(blocks), left=tuple(left))


def _remove(files: Files, found: Sequence[tuple[Path, int]], left: list[str]) -> list[int]:
    """Sizes of the files that went; one that another process removed was not freed by us."""
    gone: list[int] = []
    for path, size in found:
        try:
            files.remove(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            left.append(_sentence("be removed", path, error))
        else:
            gone.append(size)
    return gone


def _remove_folders(files: Files, listing: Listing) -> None:
    stored = {block.folder for block in listing.blocks} | {path.parent for path, _ in listing.temporaries}
    for folder in {*stored, *listing.empty_folders}:
        try:
            files.remove_folder(folder)
        except OSError:  # something of somebody's is in it, or came into it; an empty folder hurts nobody
            continue


def _sentence(what: str, path: Path, error: OSError) -> str:
    return f"{path} can't {what}: {error.strerror or error}."

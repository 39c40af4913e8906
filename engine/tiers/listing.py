"""Names of the cache's files, and what a look at the whole cache finds.

Owns the layout of the cache's folder. Whatever else lies there, symbolic links included, is as good as not there. Does
not read files and keeps nothing. Any thread, though never the engine's: a listing takes as long as the disk takes.

    <root>/<fingerprint>/<parent>-<key>.safetensors              a kv block, all in hexadecimal
    <root>/<fingerprint>/<key>-<process>-<nonce>-<n>.tmp         one that is being written, or never was to the end
"""

from __future__ import annotations

import os
import re
import secrets
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import NamedTuple

from engine.tiers.chain import Key
from engine.tiers.files import Fact, Files

STALE_NS = 3600 * 10**9
"""The age at which a temporary file is nobody's any more."""

FINGERPRINT_BYTES = 16

_MODEL = re.compile(r"[0-9a-f]{32}")
_BLOCK = re.compile(r"([0-9a-f]{32})-([0-9a-f]{32})\.safetensors")
_TEMPORARY = re.compile(r"[0-9a-f]{32}-[0-9]+-[0-9a-f]{8}-[0-9]+\.tmp")

_nonce = secrets.token_hex(4)  # process ids repeat, in containers even at the same time
_serial = count()


class Stored(NamedTuple):
    """A kv block on disk, of any model."""

    folder: Path
    parent: Key
    key: Key
    size: int
    mtime_ns: int

    @property
    def path(self) -> Path:
        """Its file."""
        return self.folder / block_name(self.parent, self.key)


@dataclass(slots=True)
class Listing:
    """What is under a root."""

    blocks: list[Stored] = field(default_factory=list)
    temporaries: list[tuple[Path, Fact]] = field(default_factory=list)
    empty_folders: list[Path] = field(default_factory=list)
    unreadable: dict[Path, OSError] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        """What everything that is ours takes."""
        return sum(stored.size for stored in self.blocks) + sum(fact.size for _, fact in self.temporaries)


def model_folder(root: Path, fingerprint: bytes) -> Path:
    """Where the blocks of a model are."""
    assert len(fingerprint) == FINGERPRINT_BYTES, "no other folder is listed"
    return root / fingerprint.hex()


def block_name(parent: Key, key: Key) -> str:
    """The name of a block's file."""
    return f"{parent.hex()}-{key.hex()}.safetensors"


def temporary_name(key: Key) -> str:
    """A name that no other file has had."""
    return f"{key.hex()}-{os.getpid()}-{_nonce}-{next(_serial)}.tmp"


def list_models(files: Files, root: Path) -> Listing:
    """All blocks under `root`. Raises OSError only where the root itself cannot be listed; a missing one is empty."""
    listing = Listing()
    try:
        found = files.list_folder(root)
    except FileNotFoundError:
        return listing
    for fact in found:
        if fact.is_folder and _MODEL.fullmatch(fact.name):
            folder = root / fact.name
            try:
                _list_model(listing, folder, files.list_folder(folder))
            except FileNotFoundError:
                continue
            except OSError as error:
                listing.unreadable[folder] = error
    return listing


def _list_model(listing: Listing, folder: Path, facts: list[Fact]) -> None:
    for fact in facts:
        if not fact.is_file:
            continue
        if match := _BLOCK.fullmatch(fact.name):
            parent, key = bytes.fromhex(match[1]), bytes.fromhex(match[2])
            listing.blocks.append(Stored(folder, parent, key, fact.size, fact.mtime_ns))
        elif _TEMPORARY.fullmatch(fact.name):
            listing.temporaries.append((folder / fact.name, fact))
    if not facts:
        listing.empty_folders.append(folder)

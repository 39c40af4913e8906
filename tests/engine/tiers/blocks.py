"""Kv blocks and file systems for the tests of the disk tier. Importing it needs no fixture data."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.tiers.chain import BLOCK_TOKENS, root_key
from engine.tiers.disk_limits import DiskLimits
from engine.tiers.files import Fact, Files
from engine.tiers.folder import BlockFolder
from engine.tiers.kv_block import KvBlock, encode, num_pages
from engine.tiers.listing import block_name, model_folder

FINGERPRINT = bytes(range(16))
OTHER = bytes(range(16, 32))
PAGE_BYTES = 96
GIB = 2**30

CALLS = tuple(name for name in vars(Files) if not name.startswith("_") and name not in ("now_ns", "is_busy"))
"""Every system call of the disk tier."""


def make_block(parent: bytes, tokens: tuple[int, ...], page_bytes: int = PAGE_BYTES) -> KvBlock:
    """A block whose data follow from its key, so that whoever has the key can tell what belongs in it."""
    size = num_pages(len(tokens)) * page_bytes
    key = KvBlock(parent, tokens, b"").key
    return KvBlock(parent, tokens, (key * (size // len(key) + 1))[:size])


def make_chain(
    count: int, *, seed: int = 0, fingerprint: bytes = FINGERPRINT, page_bytes: int = PAGE_BYTES
) -> list[KvBlock]:
    """Blocks that follow each other."""
    blocks: list[KvBlock] = []
    parent = root_key(fingerprint)
    for index in range(count):
        first = (seed + 1) * 10**6 + index * BLOCK_TOKENS
        blocks.append(make_block(parent, tuple(range(first, first + BLOCK_TOKENS)), page_bytes))
        parent = blocks[-1].key
    return blocks


def file_size(block: KvBlock) -> int:
    return len(encode(block, FINGERPRINT))


def make_limits(*, budget: int = GIB, reserve: int = 0, daily: int = GIB) -> DiskLimits:
    return DiskLimits(budget_bytes=budget, reserve_bytes=reserve, daily_write_bytes=daily)


class QuickFiles(Files):
    """Waits for no drive; its clock runs by hand, on time stamps as coarse as wanted."""

    def __init__(self, *, step_ns: int = 1) -> None:
        self.time_ns = 1_700_000_000 * 10**9
        self.step_ns = step_ns
        self.free = GIB * 100

    def now_ns(self) -> int:
        return self.time_ns

    def pass_time(self, seconds: float) -> None:
        self.time_ns += int(seconds * 1e9)

    def set_time(self, path: Path, mtime_ns: int) -> None:
        super().set_time(path, mtime_ns // self.step_ns * self.step_ns)

    def sync(self, descriptor: int) -> None:
        os.fstat(descriptor)

    def sync_folder(self, path: Path) -> None:
        os.stat(path)

    def disk_space(self, path: Path) -> tuple[int, int]:
        os.stat(path)
        return GIB * 1000, self.free


class WatchedFiles(QuickFiles):
    """Tells `before` the name and the number of each call, which may raise instead of it."""

    def __init__(self, before: Callable[[str, int], None]) -> None:
        super().__init__()
        self.before = before
        self.calls: list[str] = []

    def watch(self, name: str) -> None:
        self.calls.append(name)
        self.before(name, len(self.calls) - 1)


def _watched(name: str) -> Callable[..., object]:
    def call(self: WatchedFiles, *arguments: object) -> object:
        if name == "close":  # which gives the descriptor back also when it fails
            QuickFiles.close(self, *arguments)
        self.watch(name)
        return None if name == "close" else getattr(QuickFiles, name)(self, *arguments)

    return call


for _name in CALLS:
    setattr(WatchedFiles, _name, _watched(_name))


def make_folder(root: Path, files: Files | None = None, *, fingerprint: bytes = FINGERPRINT, **limits) -> BlockFolder:
    folder = BlockFolder(root, fingerprint, PAGE_BYTES, make_limits(**limits), files=files or QuickFiles())
    folder.scan()
    return folder


def block_files(root: Path) -> list[Path]:
    return sorted(root.glob("*/*.safetensors"))


def bytes_used(root: Path) -> int:
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file() and not path.is_symlink())


def fact_of(path: Path) -> Fact | None:
    return Files().look(path)


CHAIN = make_chain(6)
SIZE = file_size(CHAIN[0])
ROOT = root_key(FINGERPRINT)
posix = pytest.mark.skipif(sys.platform == "win32", reason="permissions and links of POSIX")


def pairs(blocks: list[KvBlock]) -> list[tuple[bytes, bytes]]:
    return [(block.parent, block.key) for block in blocks]


def path_of(root: Path, block: KvBlock, fingerprint: bytes = FINGERPRINT) -> Path:
    return model_folder(root, fingerprint) / block_name(block.parent, block.key)


def kept(root: Path, blocks: list[KvBlock], fingerprint: bytes = FINGERPRINT) -> list[bool]:
    return [path_of(root, block, fingerprint).exists() for block in blocks]


def write_all(folder: BlockFolder, blocks: list[KvBlock]) -> None:
    assert all(folder.write(block) for block in blocks)

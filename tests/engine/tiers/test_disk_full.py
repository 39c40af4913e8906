"""A disk that is full or fails at any call: nothing is raised, it is said once, and it heals."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.tiers.chain import root_key
from engine.tiers.files import Files
from engine.tiers.folder import BlockFolder
from engine.tiers.listing import model_folder, temporary_name
from tests.engine.tiers.blocks import (
    CALLS,
    FINGERPRINT,
    OTHER,
    PAGE_BYTES,
    QuickFiles,
    WatchedFiles,
    file_size,
    make_chain,
    make_folder,
    make_limits,
)

CHAIN = make_chain(5)
FOREIGN = make_chain(2, fingerprint=OTHER)
SIZE = file_size(CHAIN[0])
OTHER_CODES = (errno.EDQUOT, errno.EIO, errno.EACCES, errno.EROFS, errno.EMFILE)
STALE = temporary_name(root_key(OTHER))


def prepare(root: Path) -> None:
    """Two old blocks of another model, which have to go, and an unfinished file that is long abandoned."""
    other = make_folder(root, fingerprint=OTHER)
    for block in FOREIGN:
        other.write(block)
    stale = model_folder(root, OTHER) / STALE
    stale.write_bytes(b"half")
    os.utime(stale, (1, 1))


def open_folder(root: Path, files: Files) -> BlockFolder:
    return BlockFolder(root / "cache", FINGERPRINT, PAGE_BYTES, make_limits(budget=5 * SIZE), files=files)


def use(folder: BlockFolder) -> None:
    """All that is done with a folder, in such an order that each call is made."""
    folder.scan()
    for block in CHAIN[:4]:
        folder.write(block)
    for block in CHAIN[:4]:
        folder.read(block.parent, block.key)
    folder.touch([(block.parent, block.key) for block in CHAIN[:4]])
    folder.remove([(CHAIN[3].parent, CHAIN[3].key)])
    folder.scan()
    folder.forget(OTHER, [block.key for block in FOREIGN])
    folder.forget_all()


def check_healed(root: Path, folder: BlockFolder, files: QuickFiles) -> None:
    """With the fault gone all works, and nothing is left of what was begun."""
    use(folder)
    for block in CHAIN[:4]:
        assert folder.write(block)
    folder.touch([(CHAIN[0].parent, CHAIN[0].key)])
    files.pass_time(7200)
    folder.scan()
    assert all(folder.read(block.parent, block.key) == block for block in CHAIN[:4])
    assert folder.trouble is None
    left = [path for path in root.rglob("*") if path.is_file()]
    assert len(left) == 4, left
    assert folder.used_bytes == 4 * SIZE


def levels(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Of the log lines, without those on dropped blocks."""
    return [record.levelname for record in caplog.records if record.name == "engine.tiers.troubles"]


def calls_of_a_clean_run(root: Path) -> list[str]:
    prepare(root / "cache")
    files = WatchedFiles(lambda name, number: None)
    use(open_folder(root, files))
    return files.calls


def test_each_call_is_made(tmp_path: Path) -> None:
    assert set(calls_of_a_clean_run(tmp_path)) == set(CALLS)


@pytest.mark.parametrize("code", [errno.ENOSPC, *(pytest.param(code, marks=pytest.mark.long) for code in OTHER_CODES)])
@pytest.mark.parametrize("lasting", [False, True], ids=["once", "from then on"])
def test_a_fault_at_each_call_in_turn(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, code: int, lasting: bool
) -> None:
    caplog.set_level(logging.INFO)
    names = calls_of_a_clean_run(tmp_path / "clean")
    for faulty, name in enumerate(names):
        root = tmp_path / str(faulty)
        prepare(root / "cache")
        state = {"broken": True}

        def fail(name: str, number: int, faulty: int = faulty, state: dict[str, bool] = state) -> None:
            if state["broken"] and (number == faulty or (lasting and number > faulty)):
                raise OSError(code, os.strerror(code))

        files = WatchedFiles(fail)
        folder = open_folder(root, files)
        caplog.clear()
        use(folder)
        said = levels(caplog)
        if code in (errno.EIO, errno.EACCES) and name in ("open", "read", "close"):
            assert said.count("WARNING") <= 1  # a block that cannot be read is dropped, which is said elsewhere
        else:
            assert said.count("WARNING") == 1, (name, said)
        state["broken"] = False
        check_healed(root, folder, files)
        assert levels(caplog) in ([], ["WARNING", "INFO"])


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_never_works(tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str) -> None:
    caplog.set_level(logging.INFO)
    prepare(tmp_path / "cache")
    broken = [name]

    def fail(name: str, number: int) -> None:
        if name in broken:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    files = WatchedFiles(fail)
    folder = open_folder(tmp_path, files)
    for _ in range(3):
        use(folder)
    assert levels(caplog).count("WARNING") == 1
    assert "full" in (folder.trouble or "")
    broken.clear()
    check_healed(tmp_path, folder, files)
    assert levels(caplog) == ["WARNING", "INFO"]


def test_short_reads_and_writes(tmp_path: Path) -> None:
    class Trickle(QuickFiles):
        def write(self, descriptor: int, data: memoryview) -> int:
            return super().write(descriptor, data[:7])

        def read(self, descriptor: int, size: int) -> bytes:
            return super().read(descriptor, min(size, 11))

    files = Trickle()
    check_healed(tmp_path, open_folder(tmp_path, files), files)


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    class Shrinking(QuickFiles):
        def read(self, descriptor: int, size: int) -> bytes:
            return super().read(descriptor, 300) if size > 600 else b""

    folder = open_folder(tmp_path, Shrinking())
    assert folder.write(CHAIN[0])
    assert folder.read(CHAIN[0].parent, CHAIN[0].key) is None and not folder.contains(CHAIN[0].key)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors by /proc")
def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    names = calls_of_a_clean_run(tmp_path / "clean")
    before = descriptors()
    for faulty in range(len(names)):

        def fail(name: str, number: int, faulty: int = faulty) -> None:
            if number == faulty:
                raise OSError(errno.EIO, os.strerror(errno.EIO))

        use(open_folder(tmp_path / str(faulty), WatchedFiles(fail)))
    assert descriptors() == before


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB in memory."""
    if sys.platform != "linux":
        pytest.skip("no tmpfs on this system")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(tmp_path)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"mounting is not allowed here: {mounted.stderr.strip()}")
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_disk_that_is_really_full(small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    chain = make_chain(12, page_bytes=10_000)
    folder = BlockFolder(small_disk / "cache", FINGERPRINT, 10_000, make_limits())
    folder.scan()
    written = [folder.write(block) for block in chain]
    assert written == [True] * 6 + [False] * 6
    assert "full" in (folder.trouble or "") and levels(caplog) == ["WARNING"]
    assert len(list(small_disk.glob("*/*/*"))) == 6, "something unfinished is left"
    assert all(folder.read(block.parent, block.key) == block for block in chain[:6])
    folder.remove([(block.parent, block.key) for block in chain[3:6]])
    assert [folder.write(block) for block in chain[6:9]] == [True] * 3
    assert folder.trouble is None and levels(caplog) == ["WARNING", "INFO"]


def test_the_reserve_keeps_a_real_disk_from_filling(small_disk: Path) -> None:
    folder = BlockFolder(small_disk / "cache", FINGERPRINT, 10_000, make_limits(reserve=100_000))
    folder.scan()
    for block in make_chain(12, page_bytes=10_000):
        folder.write(block)
    assert len(folder) > 0 and folder.trouble is not None
    assert Files().disk_space(small_disk)[1] >= 100_000

"""A process that dies at any instant, and two that share a folder."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine.tiers.folder import BlockFolder
from engine.tiers.listing import STALE_NS
from tests.engine.tiers.blocks import (
    FINGERPRINT,
    PAGE_BYTES,
    QuickFiles,
    WatchedFiles,
    block_files,
    bytes_used,
    file_size,
    make_block,
    make_chain,
    make_folder,
    make_limits,
)

CHAIN = make_chain(4)
SIZE = file_size(CHAIN[0])
TOP = Path(__file__).parents[3]


class Killed(BaseException):
    """Ends everything at a call, as no error does."""


def start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.engine.tiers.writer_process", *map(str, arguments)],
        cwd=TOP,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def check_all(root: Path) -> BlockFolder:
    """Each block that is listed is whole, and unfinished files go when they are old."""
    for path in root.glob("*/*.tmp"):
        os.utime(path, ns=(time.time_ns() - 2 * STALE_NS,) * 2)
    folder = BlockFolder(root, FINGERPRINT, PAGE_BYTES, make_limits())
    folder.scan()
    assert list(root.glob("*/*.tmp")) == []
    for path in block_files(root):
        parent, key = (bytes.fromhex(part) for part in path.stem.split("-"))
        tokens = folder.head(parent, key)
        assert tokens is not None and folder.read(parent, key) == make_block(parent, tokens)
    assert folder.used_bytes == bytes_used(root) and folder.trouble is None
    return folder


def test_death_at_each_call(tmp_path: Path) -> None:
    """What was written before stays, and what was being written is there whole or not at all."""
    clean = WatchedFiles(lambda name, number: None)
    folder = make_folder(tmp_path / "clean", clean)
    before = len(clean.calls)
    assert all(folder.write(block) for block in CHAIN)
    for last in range(before, len(clean.calls)):
        root = tmp_path / str(last)

        def die(name: str, number: int, last: int = last) -> None:
            if number >= last:
                raise Killed

        folder = make_folder(root, WatchedFiles(die))
        written = 0
        try:
            for block in CHAIN:
                assert folder.write(block)
                written += 1
        except Killed:
            pass
        again = check_all(root)
        assert written <= len(again) <= written + 1
        assert all(again.contains(block.key) for block in CHAIN[:written])
        assert all(again.contains(block.key) or again.write(block) for block in CHAIN)


def test_death_between_the_bytes_of_a_file(tmp_path: Path) -> None:
    class Dying(QuickFiles):
        left = 0

        def write(self, descriptor: int, data: memoryview) -> int:
            if not self.left:
                raise Killed
            written = super().write(descriptor, data[: self.left])
            self.left -= written
            return written

    for left in range(0, SIZE, 50):
        files = Dying()
        files.left = left
        with pytest.raises(Killed):
            make_folder(tmp_path / str(left), files).write(CHAIN[0])
        assert len(check_all(tmp_path / str(left))) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the processes to kill are forked")
@pytest.mark.parametrize("count", [20, pytest.param(200, marks=pytest.mark.long)])
def test_killed_at_random_instants(tmp_path: Path, count: int) -> None:
    chance = random.Random(count)
    nursery = start(tmp_path, 0, 0, 30 * SIZE)
    assert nursery.stdin is not None and nursery.stdout is not None
    try:
        for _ in range(count):
            nursery.stdin.write("\n")
            nursery.stdin.flush()
            child = int(nursery.stdout.readline())
            time.sleep(chance.uniform(0, 0.05))
            os.kill(child, signal.SIGKILL)
            assert nursery.stdout.readline() == "ended\n"
            check_all(tmp_path)
    finally:
        nursery.stdin.close()
        nursery.stdout.close()
        assert nursery.wait(30) == 0
    assert len(check_all(tmp_path)) > 4, "hardly anything was written before the kills"
    assert bytes_used(tmp_path) <= 31 * SIZE


@pytest.mark.parametrize("num_chains", [6, pytest.param(200, marks=pytest.mark.long)])
def test_two_processes_write_read_and_evict_in_one_folder(tmp_path: Path, num_chains: int) -> None:
    """Half of what they write is the same, and neither knows what the other one removes."""
    processes = [start(tmp_path, seed, num_chains, 10 * SIZE) for seed in (0, num_chains // 2)]
    for process in processes:
        process.communicate(timeout=120)
        assert process.returncode == 0
    assert len(check_all(tmp_path)) >= 4
    folder = make_folder(tmp_path, budget=10 * SIZE)
    assert bytes_used(tmp_path) == folder.used_bytes <= 10 * SIZE

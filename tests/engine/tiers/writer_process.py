"""Writes kv blocks as another process does: `writer_process.py <root> <seed> <number of chains> <budget in bytes>`.

With a number of chains of 0 it goes on until it is killed, in one new process for each line of its input, whose id it
prints before the first write.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from engine.tiers.folder import BlockFolder
from tests.engine.tiers.blocks import FINGERPRINT, PAGE_BYTES, make_chain, make_limits


def write(root: Path, seed: int, num_chains: int, budget: int) -> None:
    folder = BlockFolder(root, FINGERPRINT, PAGE_BYTES, make_limits(budget=budget))
    folder.scan()
    index = 0
    while num_chains == 0 or index < num_chains:
        chain = make_chain(4, seed=(seed + index) % 50)
        for block in chain:
            folder.write(block)
        for block in chain:
            found = folder.read(block.parent, block.key)
            assert found in (None, block), "a block is not what was written"
        folder.touch([(block.parent, block.key) for block in chain])
        index += 1
    assert folder.trouble is None, folder.trouble


def main() -> None:
    root, seed, num_chains, budget = Path(sys.argv[1]), *map(int, sys.argv[2:])
    if num_chains:
        write(root, seed, num_chains, budget)
        return
    for turn, _ in enumerate(sys.stdin):
        child = os.fork()
        if not child:
            os.write(1, f"{os.getpid()}\n".encode())
            write(root, seed + 7 * turn, 0, budget)
        os.waitpid(child, 0)
        os.write(1, b"ended\n")


if __name__ == "__main__":
    main()

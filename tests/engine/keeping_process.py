"""An engine on a pretend table that keeps conversations until it is killed: `keeping_process.py <root>`.

Begins in a new process for each line of its input, whose id it prints before the first write.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

from engine.engine import Engine
from engine.fake_table import PAGE_BYTES, FakeTable, small_limits
from engine.function_table import TableLimits
from engine.request import Request
from engine.tiers.disk_limits import DiskLimits
from engine.tiers.settings import TierSettings, open_store
from engine.tiers.store import KvStore

NUM_CHATS = 6
LIMITS: TableLimits = small_limits(num_pages=64, context_length=512)


class Bytes:
    """Token n is byte n."""

    stop_ids: frozenset[int] = frozenset()

    def token_bytes(self, token: int) -> bytes:
        return bytes([token % 256])


def next_token(state: int, last: int) -> int:
    return 97 + state % 3


def prompt(turn: int, chat: int) -> list[int]:
    """New ones in each process, of which every third has the same beginning."""
    common = random.Random(f"{turn} {chat % 3}")
    own = random.Random(f"{turn} {chat} own")
    return [*(common.randrange(90) for _ in range(100)), *(own.randrange(90) for _ in range(40 + 20 * chat))]


def open_tiers(root: Path, host_bytes: int = 1 << 20) -> KvStore:
    disk = DiskLimits(budget_bytes=1 << 30, reserve_bytes=0, daily_write_bytes=1 << 30)
    settings = TierSettings(root=root, host_bytes=host_bytes, disk=disk)
    store = open_store(settings, b"m" * 16, PAGE_BYTES, "A model")
    assert store is not None
    return store


def converse(root: Path, turn: int) -> None:
    """Chat after chat, for ever; once all are kept, from what is."""
    store = open_tiers(root)
    engine = Engine(FakeTable(LIMITS, next_token=next_token, delay=2), Bytes(), store=store)
    while True:
        for chat in range(NUM_CHATS):
            request = Request(request_id=str(chat), prompt_ids=tuple(prompt(turn, chat)), max_tokens=1 + 3 * chat)
            engine.add_request(request)
            while engine.has_work:
                engine.step()
            engine.take_outbox()


def main() -> None:
    for turn, _ in enumerate(sys.stdin):
        child = os.fork()
        if not child:
            os.write(1, f"{os.getpid()}\n".encode())
            converse(Path(sys.argv[1]), turn)
        os.waitpid(child, 0)
        os.write(1, b"ended\n")


if __name__ == "__main__":
    main()

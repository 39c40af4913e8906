"""Whole engines that die at any instant, over and over in one folder: the next one never says a wrong token.

The pretend table's pages hold what they were computed from, so a page in the wrong place gives other tokens. What
SmolLM2 says after such deaths is in tests/engine/gpu/test_kept_process.py.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.fake_table import continuation
from tests.engine.keeping_process import LIMITS, NUM_CHATS, next_token, open_tiers, prompt

SHARED = 302
"""Tokens that the chats have from each other when they are asked, whether anything is on disk or not: at most this."""

TOP = Path(__file__).parents[2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the processes to kill are forked")
@pytest.mark.parametrize("count", [20, pytest.param(200, marks=pytest.mark.long)])
def test_killed_at_random_instants(make_driver: Callable, tmp_path: Path, count: int) -> None:
    chance = random.Random(count)
    nursery = subprocess.Popen(
        [sys.executable, "-m", "tests.engine.keeping_process", str(tmp_path)],
        cwd=TOP,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert nursery.stdin is not None and nursery.stdout is not None
    restored = []
    try:
        for turn in range(count):
            nursery.stdin.write("\n")
            nursery.stdin.flush()
            child = int(nursery.stdout.readline())
            time.sleep(chance.uniform(0.0, 0.2))
            os.kill(child, signal.SIGKILL)
            assert nursery.stdout.readline() == "ended\n"
            restored.append(check(make_driver, tmp_path, turn))
    finally:
        nursery.stdin.close()
        nursery.stdout.close()
        assert nursery.wait(30) == 0
    assert sum(number > SHARED for number in restored) > count / 4, "hardly anything was kept before the kills"


def check(make_driver: Callable, root: Path, turn: int) -> int:
    """Ask all its chats, of an engine that has only the disk and leaves nothing there; returns the cached tokens."""
    store = open_tiers(root, host_bytes=0)
    driver = make_driver(LIMITS, store=store, next_token=next_token)
    total = 0
    for chat in range(NUM_CHATS):
        tokens = prompt(turn, chat)
        driver.add(str(chat), tokens, max_tokens=5, persist=False)
        driver.run()
        assert driver.tokens(str(chat)) == continuation(tokens, 5, next_token)
        total += driver.cached(str(chat))
    assert store.close(10.0)
    return total

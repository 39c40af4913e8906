"""The instruction queue: how callers' threads reach the engine's background thread.

Owns the order of instructions, the number of the newest load, and the engine's end. Knows not what an instruction does.
One condition variable guards all of it, held for as long as a deque takes; any thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from engine.instructions import AbortRequest, AddRequest, Instruction, Load, QueryMetrics


class InstructionQueue:
    """Loads are numbered: one is superseded once another load, an unload or the end has been asked for."""

    def __init__(self) -> None:
        self._wake = threading.Condition()
        self._instructions: deque[Instruction] = deque()
        self._last_load = 0
        self._closing = False

    def __len__(self) -> int:
        return len(self._instructions)

    def put(self, instruction: Instruction) -> bool:
        """Queue an instruction; False if the engine was shut down."""
        with self._wake:
            if not self._closing:
                self._instructions.append(instruction)
                self._wake.notify()
            return not self._closing

    def supersede_loads(self) -> int:
        """Make every load so far pointless, and return the number of the next one."""
        with self._wake:
            self._last_load += 1
            return self._last_load

    def is_superseded(self, load: Load) -> bool:
        """Whether nobody wants the load any more."""
        with self._wake:
            return load.number != self._last_load

    @property
    def newest_load(self) -> int:
        """The number of a load that comes of itself: it is superseded by whatever is asked from now on."""
        with self._wake:
            return self._last_load

    def close(self) -> None:
        """Take no more instructions, and let wait() say so."""
        with self._wake:
            self._closing = True
            self._last_load += 1
            self._wake.notify()

    def wait(self, has_work: Callable[[], bool]) -> bool:
        """Sleep until there is an instruction or other work; False once the queue is closed."""
        with self._wake:
            while not (self._closing or self._instructions or has_work()):
                self._wake.wait()
            return not self._closing

    def next(self) -> Instruction | None:
        """The oldest instruction; None if there is none."""
        with self._wake:
            return self._instructions.popleft() if self._instructions else None

    def next_while_loading(self) -> Instruction | None:
        """The oldest instruction if a load need not end for it."""
        with self._wake:
            if self._instructions and isinstance(self._instructions[0], AddRequest | AbortRequest | QueryMetrics):
                return self._instructions.popleft()
            return None

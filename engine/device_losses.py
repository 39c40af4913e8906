"""How often a device may be lost before its model is given up. Knows neither. The engine's background thread."""

from __future__ import annotations

import time

MAX_LOSSES = 3
LOSS_WINDOW_S = 60.0
"""A device may be lost so often in so many seconds."""


class DeviceLosses:
    """The times of the latest losses."""

    def __init__(self) -> None:
        self._times: list[float] = []

    def note(self) -> bool:
        """A device was lost just now; whether another one is worth trying."""
        now = time.monotonic()
        self._times = [at for at in self._times if now - at < LOSS_WINDOW_S] + [now]
        return len(self._times) <= MAX_LOSSES

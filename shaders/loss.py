"""Notices that a device was lost. wgpu-py only logs it, so this listens to its log and then asks the device itself.

Recorded work skips wgpu's checks, and on a lost device some raw calls abort the process: whoever is about to make one
asks first. Any thread.
"""

from __future__ import annotations

import logging

_MARK = "lost"


class _Listener(logging.Handler):
    """Counts what wgpu says about lost devices; which device it was, the log does not tell."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        if _MARK in str(record.msg).lower():
            self.count += 1


_listener = _Listener()


def listen() -> None:
    """Start listening; call once wgpu is imported, which wants to make its logger itself."""
    logger = logging.getLogger("wgpu")
    if _listener not in logger.handlers:
        logger.addHandler(_listener)


def losses() -> int:
    """How many times wgpu has spoken of a lost device in this process."""
    return _listener.count

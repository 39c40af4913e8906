"""What is wrong with the cache's disk, said once.

Owns which operations fail at present, and says so when the first one begins to and when the last one works again. Does
not know what they do. Any thread.
"""

from __future__ import annotations

import errno
import logging
from pathlib import Path
from threading import Lock

logger = logging.getLogger(__name__)

_FULL = (errno.ENOSPC, errno.EDQUOT)


class Troubles:
    """At most one log line until everything works again."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._causes: dict[str, str] = {}
        self._lock = Lock()

    @property
    def text(self) -> str | None:
        """A sentence on what is wrong; None where nothing is."""
        causes = list(self._causes.values())
        return causes[0] if causes else None

    def report(self, operation: str, cause: OSError | str) -> None:
        """This operation does not work now."""
        with self._lock:
            first = not self._causes
            self._causes[operation] = _sentence(cause)
        if first:
            logger.warning("Prefix cache in %s: %s Chats go on without it.", self._root, _sentence(cause))

    def heal(self, operation: str) -> None:
        """This operation works."""
        if operation not in self._causes:  # the common case takes no lock
            return
        with self._lock:
            healed = self._causes.pop(operation, None) is not None and not self._causes
        if healed:
            logger.info("Prefix cache in %s: it works again.", self._root)


def _sentence(cause: OSError | str) -> str:
    if isinstance(cause, str):
        return cause
    if cause.errno in _FULL:
        return "The disk is full; free some space to have chats kept for the next start."
    return f"{cause.strerror or cause}; chats are kept for the next start once this is mended."

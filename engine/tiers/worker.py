"""A thread that does jobs one after another, for work on the disk that nobody should wait for.

Knows no job. A job that fails is logged, and the thread lives on; as a daemon it keeps no program from ending.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

logger = logging.getLogger(__name__)


class Worker:
    """See the module's docstring. All methods may be called from any thread. The thread starts with the first job."""

    def __init__(self, name: str) -> None:
        self._wake = threading.Condition()
        self._jobs: deque[Callable[[], None]] = deque()
        self._working = False
        self._began = 0.0
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def num_jobs(self) -> int:
        """Jobs that wait or are being done."""
        with self._wake:
            return len(self._jobs) + self._working

    @property
    def busy_s(self) -> float:
        """How long the job that is being done has taken; 0 where there is none."""
        with self._wake:
            return time.monotonic() - self._began if self._working else 0.0

    def submit(self, job: Callable[[], None]) -> bool:
        """Do a job after those that wait; False if the worker is closed."""
        with self._wake:
            if self._closing:
                return False
            self._jobs.append(job)
            if self._thread.ident is None:
                self._thread.start()
            self._wake.notify_all()
            return True

    def wait(self, timeout_s: float) -> None:
        """Wait until the job that is being done is done, up to so long."""
        with self._wake:
            if self._jobs or self._working:
                self._wake.wait(timeout_s)

    def flush(self, timeout_s: float) -> bool:
        """Wait until there is nothing to do; False if that took too long."""
        deadline = time.monotonic() + timeout_s
        with self._wake:
            while self._jobs or self._working:
                if not self._wake.wait(deadline - time.monotonic()) and time.monotonic() >= deadline:
                    return False
            return True

    def close(self, timeout_s: float) -> bool:
        """Do what waits, then end; False if that took too long. What is not done then may never be."""
        with self._wake:
            self._closing = True
            self._wake.notify_all()
            if self._thread.ident is None:
                return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._wake:
                self._working = False
                self._wake.notify_all()
                while not self._jobs:
                    if self._closing:
                        return
                    self._wake.wait()
                job = self._jobs.popleft()
                self._working, self._began = True, time.monotonic()
            try:
                job()
            except Exception:
                # Whatever a disk or a file does to a job must not cost the ones after it.
                logger.exception("A job of %s failed", self._thread.name)

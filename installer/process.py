"""Running other programs: quietly into the log while progress is told, or visibly with the terminal handed over.

Owns the log file, the error type and the handling of Ctrl+C around a child. It does not know what it runs.
The output of a quiet child is read on a thread of its own, so that a silent child still lets progress be told.
"""

import queue
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

QUIET_SECONDS = 10.0
STOP_SECONDS = 10.0


class SetupError(Exception):
    """A failure that the reader can act on; its text is one line with the cause and the way out."""


class Log:
    """A text file with everything that was run, opened at the first line: nothing to do writes nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[str] | None = None

    @property
    def used(self) -> bool:
        """Whether anything was written, so that messages only name a log that says something."""
        return self._file is not None

    def write(self, line: str) -> None:
        """Append one line; raises SetupError where the project's folder cannot be written."""
        if self._file is None:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self.path.open("w", encoding="utf-8", errors="replace")
            except OSError as error:
                raise SetupError(
                    f"Cannot write {self.path}: {error.strerror}. Move the folder to a place you may write to."
                ) from error
        self._file.write(line.rstrip("\n") + "\n")
        self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What a quiet child left: its exit status and all lines of stdout and stderr, in order."""

    status: int
    lines: tuple[str, ...]


def run_logged(
    command: Sequence[str],
    log: Log,
    *,
    env: Mapping[str, str] | None = None,
    on_line: Callable[[str], None] | None = None,
    on_quiet: Callable[[float], None] | None = None,
) -> Output:
    """Run `command` without a terminal, every line into `log` and `on_line`; `on_quiet` gets the seconds so far."""
    log.write("$ " + shlex.join(command))
    started = time.monotonic()
    process = subprocess.Popen(
        list(command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=None if env is None else dict(env),
        encoding="utf-8",
        errors="replace",
    )
    assert process.stdout is not None
    arriving: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=_pump, args=(process.stdout, arriving), daemon=True).start()
    lines: list[str] = []
    try:
        while True:
            try:
                line = arriving.get(timeout=QUIET_SECONDS)
            except queue.Empty:
                if on_quiet is not None:
                    on_quiet(time.monotonic() - started)
                continue
            if line is None:
                break
            lines.append(line)
            log.write(line)
            if on_line is not None:
                on_line(line)
        status = process.wait()
    finally:
        stop(process)
    log.write(f"(exit status {status})")
    return Output(status=status, lines=tuple(lines))


def _pump(stream: IO[str], arriving: "queue.Queue[str | None]") -> None:
    with stream:
        for line in stream:
            arriving.put(line.rstrip("\r\n"))
    arriving.put(None)


def run_visible(command: Sequence[str], env: Mapping[str, str], *, cwd: Path, keep_waiting: bool = False) -> int:
    """Run `command` with the terminal handed over and return its exit status.

    Ctrl+C reaches the child by itself. It gets time to end, then KeyboardInterrupt goes on; with `keep_waiting`
    the child decides alone what Ctrl+C means.
    """
    process = subprocess.Popen(list(command), env=dict(env), cwd=cwd)
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            if keep_waiting:
                continue
            stop(process)
            raise


def stop(process: "subprocess.Popen[str] | subprocess.Popen[bytes]") -> None:
    """End a child that may still run: ask, wait, then insist."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(timeout=STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

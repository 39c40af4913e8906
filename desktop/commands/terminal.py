"""What reaches the terminal: results on stdout, everything else on stderr, both in UTF-8 and never fatal to encode.

Knows nothing of models or commands. LoadLine may be called from any one thread at a time; the rest runs on the main
thread.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, TextIO

from desktop import words

if TYPE_CHECKING:
    from engine.config import Estimate

MIB = 1024 * 1024
_QUARTERS = 4


class Progress(Protocol):
    """The part of a load's progress that is shown."""

    @property
    def stage(self) -> str: ...
    @property
    def done_bytes(self) -> int: ...
    @property
    def total_bytes(self) -> int: ...
    @property
    def estimate(self) -> Estimate | None: ...


def prepare_streams() -> None:
    """Make the standard streams UTF-8 whatever the console's code page is; what it cannot show is replaced."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="replace")


def quiet_logs() -> None:
    """Keep Python from printing log records, tracebacks among them, where a command sets up no log of its own."""
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(logging.NullHandler())


class _Notices(logging.Handler):
    """Shows log records as notices: for what a person should know though no command has failed."""

    def emit(self, record: logging.LogRecord) -> None:
        notice(record.getMessage())


@contextlib.contextmanager
def disk_notices() -> Iterator[None]:
    """Say on stderr, once, when the disk takes no conversations any more."""
    log, handler = logging.getLogger("engine.tiers.troubles"), _Notices(logging.WARNING)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


def notice(sentence: str) -> None:
    """One line on stderr. A stderr that is gone is no reason to fail."""
    with contextlib.suppress(OSError, ValueError):
        print(f"inglenook: {' '.join(sentence.split())}", file=sys.stderr, flush=True)


def write(text: str) -> None:
    """Text on stdout, at once. Raises BrokenPipeError where nobody reads any more."""
    if sys.stdout is not None:
        sys.stdout.write(text)
        sys.stdout.flush()


def write_json(value: object) -> None:
    """One JSON value on one line of stdout, in ASCII so that no reader's encoding matters."""
    write(json.dumps(value) + "\n")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Left-aligned columns, two spaces apart, each line ended."""
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "".join("  ".join(map(str.ljust, line, widths)).rstrip() + "\n" for line in lines)


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a person is at the other end; a stream may be absent in a windowed program."""
    return stream is not None and not stream.closed and stream.isatty()


def flush() -> None:
    """Send what is buffered while a broken pipe can still be handled."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()


def discard_output() -> None:
    """Point stdout at nothing, so that the interpreter's own flush at exit does not fail loudly."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, sys.stdout.fileno())
        os.close(sink)


def end_interrupted_line() -> None:
    """Ctrl+C leaves `^C` in the middle of a line; the shell's prompt belongs on its own."""
    with contextlib.suppress(OSError, ValueError):
        if is_terminal(sys.stderr):
            print(file=sys.stderr)


class LoadLine:
    """Progress of a load on stderr: one line that rewrites itself for a person, a line per quarter for a log.

    What the load will take is said as soon as it is known, and kept in `estimate`.
    """

    def __init__(self) -> None:
        self._live = is_terminal(sys.stderr)
        self._shown = ""
        self._quarter = 0
        self.estimate: Estimate | None = None

    def __call__(self, progress: Progress) -> None:
        share = progress.done_bytes / progress.total_bytes if progress.total_bytes > 0 else 0.0
        with contextlib.suppress(OSError, ValueError):
            if progress.estimate is not None:
                self._estimated(progress.estimate)
            if self._live:
                takes = f" ({words.memory(self.estimate)})" if self.estimate else ""
                self._rewrite(f"{progress.stage} … {share:.0%}{takes}" if share else f"{progress.stage} …{takes}")
            elif (quarter := int(share * _QUARTERS)) > self._quarter:
                self._quarter = quarter
                size = f"{progress.total_bytes / MIB:.0f} MiB"
                print(f"{progress.stage}: {quarter * 100 // _QUARTERS} % of {size}", file=sys.stderr, flush=True)

    def _estimated(self, estimate: Estimate) -> None:
        """Said anew where a load is tried again with less."""
        self.estimate = estimate
        self._quarter = 0
        if not self._live:
            print(f"Memory: {words.memory(estimate)}", file=sys.stderr, flush=True)

    def finish(self) -> None:
        """Leave the terminal as it was before the load."""
        with contextlib.suppress(OSError, ValueError):
            if self._live and self._shown:
                self._rewrite("")
                self._live = False

    def _rewrite(self, text: str) -> None:
        width = shutil.get_terminal_size().columns - 1
        if len(text) > width:  # a line that wraps could not be rewritten
            text = text[: width - 1] + "…"
        if text == self._shown:
            return
        # Spaces, not an escape sequence: older Windows consoles show those as text.
        sys.stderr.write("\r" + text.ljust(len(self._shown)) + ("" if text else "\r"))
        sys.stderr.flush()
        self._shown = text

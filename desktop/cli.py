"""The entry point `inglenook`: picks a command, runs it, and turns whatever goes wrong into a line and an exit status.

0 done, 1 failed with one line on stderr, 2 wrong usage, 130 ended by Ctrl+C, 141 nobody reads the output any more.
Knows no command's work. Qt, numpy and the GPU are imported by the command that needs them, so that `--help` is quick.
Runs on the main thread.
"""

from __future__ import annotations

import argparse
import errno
import sys
from collections.abc import Callable, Sequence

import engine
from desktop.commands import bench, cache, chat, doctor, generate, logits, models, options, serve, terminal, window
from engine.errors import EngineError
from models.errors import ModelError

STATUS_FAILED = 1
STATUS_INTERRUPTED = 130
STATUS_BROKEN_PIPE = 141

_COMMANDS = (chat, serve, generate, logits, models, cache, bench, doctor)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status. Never raises, whatever the command does."""
    terminal.prepare_streams()
    terminal.quiet_logs()
    return _guarded(lambda: _run(argv))


def build_parser() -> argparse.ArgumentParser:
    """All commands with their options; `run` in the parsed arguments is the function to call with them."""
    parser = argparse.ArgumentParser(
        prog="inglenook",
        description="Run language models on your own GPU. Without a command, the window opens.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"inglenook {engine.__version__}")
    window.add_options(parser)
    parser.set_defaults(run=window.run)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for command in _COMMANDS:
        command.register(commands)
    return parser


def _run(argv: Sequence[str] | None) -> int:
    parser = build_parser()
    try:
        args = parser.parse_args(argv)
        if args.command is not None and (misplaced := window.options_given(args)):
            parser.error(f"{misplaced} goes after the command: inglenook {args.command} {misplaced} …")
    except SystemExit as stop:  # argparse's way to end: 0 after --help, 2 after wrong usage
        return stop.code if isinstance(stop.code, int) else 0
    status: int = args.run(args)
    return status


def _guarded(work: Callable[[], int]) -> int:
    try:
        status = work()
        terminal.flush()
        return status
    except KeyboardInterrupt:
        terminal.end_interrupted_line()
        return STATUS_INTERRUPTED
    except (EngineError, ModelError, options.CommandError) as error:
        return _failed(str(error))
    except MemoryError:
        return _failed("There is not enough memory. Close other programs, or use a smaller context or model.")
    except OSError as error:
        if _is_broken_pipe(error):
            terminal.discard_output()
            return STATUS_BROKEN_PIPE
        return _failed(_os_sentence(error))
    except Exception as error:  # noqa: BLE001  the last line of defence: a person gets a sentence, not a traceback
        return _failed(_bug_sentence(error))


def _failed(sentence: str) -> int:
    terminal.notice(sentence)
    return STATUS_FAILED


def _is_broken_pipe(error: OSError) -> bool:
    """Windows says "invalid argument", of no file, where a pipe's reader is gone."""
    if isinstance(error, BrokenPipeError):
        return True
    return sys.platform == "win32" and error.errno == errno.EINVAL and error.filename is None


def _os_sentence(error: OSError) -> str:
    reason = error.strerror or str(error) or type(error).__name__
    return f"{error.filename}: {reason}." if error.filename else f"{reason}."


def _bug_sentence(error: Exception) -> str:
    """Names the place, which is what a bug report needs from a traceback."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f" at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace is not None else ""
    return f"This is a bug in Inglenook: {type(error).__name__}: {error}{place}. Report it with this line."


if __name__ == "__main__":
    sys.exit(main())

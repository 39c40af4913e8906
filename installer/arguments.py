"""The command line of the bootstrap: its usage text and the request that arguments spell. Knows nothing of the work."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

PYTHON = "py -3" if sys.platform == "win32" else "python3"
USAGE = f"""\
usage: {PYTHON} installer/bootstrap.py COMMAND

  setup                                  make .venv and install everything into it
  run [ARGUMENT ...]                     set up if needed, then open Inglenook; arguments go to `inglenook`
  test [--long] [-- PYTEST ARGUMENT ...] set up if needed, then run the checks and tests
  lock [--upgrade]                       for developers: refresh installer/requirements.lock

Without a display `run` opens a conversation in the terminal.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What was asked: `extra` goes to the app (run), to pytest (test) or to uv (lock)."""

    command: str
    long: bool = False
    extra: tuple[str, ...] = ()


class UsageError(Exception):
    """The arguments make no sense; the text says which."""


def parse(arguments: Sequence[str]) -> Request:
    """The request that `arguments` spell; raises UsageError. Written out, for all after `run` is the app's."""
    if not arguments:
        raise UsageError("a command is missing")
    command, rest = arguments[0], list(arguments[1:])
    if command == "run":
        return Request(command=command, extra=tuple(rest[1:] if rest[:1] == ["--"] else rest))
    if command == "test":
        own, extra = (rest[: rest.index("--")], rest[rest.index("--") + 1 :]) if "--" in rest else (rest, [])
        if unknown := [word for word in own if word != "--long"]:
            raise UsageError(f"test does not know {unknown[0]}; arguments for pytest follow a --")
        return Request(command=command, long="--long" in own, extra=tuple(extra))
    if command not in ("setup", "lock"):
        raise UsageError(f"there is no command {command}")
    if unknown := [word for word in rest if (command, word) != ("lock", "--upgrade")]:
        raise UsageError(f"{command} does not know {unknown[0]}")
    return Request(command=command, extra=tuple(rest))

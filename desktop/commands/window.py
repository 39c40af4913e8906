"""No command: the window, or a conversation in the terminal where no window can open.

The only place of the command line that imports Qt, and only once there is a display. Runs on the main thread, which
becomes the GUI thread.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from desktop.commands import chat, options, terminal

_PREFIX = "window_"  # a command's own --adapter is stored under the plain name
_DEVICE = ("adapter", "context", "kv_type", "kernels")


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `inglenook` itself."""
    parser.add_argument("--model", dest=f"{_PREFIX}model", metavar="MODEL", help="the model to open the window with")
    options.add_device(parser, prefix=_PREFIX)


def options_given(args: argparse.Namespace) -> str | None:
    """One of this module's options that was given, by its flag, else None: before a command they would be lost."""
    for name in ("model", *_DEVICE):
        if getattr(args, _PREFIX + name) is not None:
            return "--" + name.replace("_", "-")
    return None


def run(args: argparse.Namespace) -> int:
    """Open the window and return its exit status when it is closed."""
    if not has_display():
        terminal.notice("There is no display for a window, so here is a conversation in the terminal.")
        return chat.run(_chat_arguments(args))
    try:
        from desktop.app import run_window
    except ImportError as error:
        if (error.name or "").split(".")[0] == "desktop":
            raise
        raise options.CommandError(f"The window cannot open: {error}. `inglenook chat` works without it.") from error
    model = _model_path(args.window_model)
    with _default_interrupt():
        return run_window(
            model,
            args.window_adapter,
            args.window_context,
            args.window_kv_type or "f16",
            kernels=args.window_kernels,
        )


@contextmanager
def _default_interrupt() -> Iterator[None]:
    """Ctrl+C ends a program in Qt's loop at once; Python would notice it only when it next runs, inside some slot."""
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def has_display() -> bool:
    """Whether Qt could show a window. Qt ends the process where it cannot, so this is asked beforehand."""
    if not sys.platform.startswith("linux") or os.environ.get("QT_QPA_PLATFORM"):
        return True
    return _wayland_answers() or _x11_answers()


def _wayland_answers() -> bool:
    name = os.environ.get("WAYLAND_DISPLAY")
    return name is not None and name != "" and _connects(str(Path(os.environ.get("XDG_RUNTIME_DIR", "/"), name)))


def _x11_answers() -> bool:
    host, colon, number = os.environ.get("DISPLAY", "").rpartition(":")
    if not colon:
        return False
    if host not in ("", "unix"):
        return True  # a forwarded display; whether it answers shows when Qt connects
    path = f"/tmp/.X11-unix/X{number.split('.')[0]}"
    return _connects(path) or _connects("\0" + path)


def _connects(address: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(address)
        except OSError:
            return False
    return True


def _model_path(name: str | None) -> Path | None:
    """None lets the window choose, and offer a model where there is none."""
    if name is None:
        return None
    from models.library import resolve

    return resolve(name)


def _chat_arguments(args: argparse.Namespace) -> argparse.Namespace:
    """What `inglenook chat` would get: its own defaults and the options of the window."""
    parser = argparse.ArgumentParser()
    chat.add_arguments(parser)
    chat_args = parser.parse_args([])
    for name in ("model", *_DEVICE):
        if (value := getattr(args, _PREFIX + name)) is not None:
            setattr(chat_args, name, value)
    return chat_args

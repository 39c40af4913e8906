"""The commands `setup`, `run`, `test` and `lock`: sets up what is left to set up, then opens the app or tests it.

Owns the order of the steps, what is printed, and the exit status: 0 done, 1 failed with one line, 2 wrong usage,
130 after Ctrl+C. Details go to build/bootstrap.log. Runs on the main thread; `process.py` reads children.
"""

import os
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from installer import environment as venv
from installer import linux
from installer.arguments import PYTHON, USAGE, Request, UsageError, parse
from installer.environment import Environment
from installer.launch import APP_COMMANDS, app_arguments, app_variables, has_display
from installer.process import Log, SetupError, run_logged, run_visible

NEEDED_BYTES = 1_500_000_000
DOWNLOAD = "about 230 MB"
LOCK_ARGUMENTS = (
    "pip compile --universal --generate-hashes --no-emit-index-url --no-header "
    "pyproject.toml --group dev -o installer/requirements.lock"
).split()


def main(arguments: Sequence[str]) -> int:
    """Carry the request out and return the exit status; never a traceback."""
    if arguments and arguments[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0
    try:
        request = parse(arguments)
    except UsageError as error:
        print(f"{error}\n{USAGE}", end="", file=sys.stderr)
        return 2
    environment = Environment(root=Path(__file__).resolve().parent.parent)
    log = Log(environment.root / "build" / "bootstrap.log")
    try:
        return {"setup": setup, "run": run, "test": test, "lock": lock}[request.command](request, environment, log)
    except SetupError as error:
        return fail(str(error), log)
    except KeyboardInterrupt:
        print("\nStopped. The same command goes on from here.", file=sys.stderr)
        return 130
    except Exception as error:  # noqa: BLE001  a person gets one line for our own bugs too; the log gets the rest
        return fail(record(error, log), log)
    finally:
        log.close()


def record(error: Exception, log: Log) -> str:
    """Put the traceback into the log and return the line for the reader."""
    try:
        log.write("".join(traceback.format_exception(error)))
    except (SetupError, OSError):
        return f"Unexpected: {error}. The log could not be written either; is the disk full or the folder read-only?"
    return f"Unexpected: {type(error).__name__}: {error}. The log has the details."


def fail(line: str, log: Log) -> int:
    print(line, file=sys.stderr)
    if log.used:
        print(f"Details: {log.path}", file=sys.stderr)
    return 1


def ensure_ready(environment: Environment, log: Log, *, window: bool, stream: TextIO) -> bool:
    """Do what is left to do of the setup, telling progress on `stream`; returns whether anything was."""

    def step(number: int, text: str) -> Callable[[str], None]:
        print(f"[{number}/4] {text}", file=stream, flush=True)
        return detail

    def detail(text: str) -> None:
        print(f"      {text}", file=stream, flush=True)

    if venv.is_current(environment):
        if sys.platform == "linux":  # a few milliseconds, and packages can go at any time
            linux.provide(os.environ, log, detail, window=window)
        return False
    say = step(1, "Checking the system")
    free = shutil.disk_usage(environment.root).free
    if free < NEEDED_BYTES and not environment.venv.exists():
        raise SetupError(f"Only {free / 1e9:.1f} GB are free here, and the setup needs about 1.5 GB. Free some space.")
    if sys.platform == "linux":
        linux.provide(os.environ, log, say, window=window)
    say = step(2, "Making .venv with Python {}.{}.{}".format(*sys.version_info[:3]))
    venv.make_venv(environment, log, say)
    environment.stamp.unlink(missing_ok=True)
    count = len(venv.entries(environment.lock.read_text(encoding="utf-8")))
    say = step(3, f"Installing up to {count} packages, {DOWNLOAD} to fetch the first time")
    venv.install_lock(environment, log, say)
    say = step(4, "Installing Inglenook itself")
    venv.install_project(environment, log)
    model = environment.starter_model()
    if model is None:
        raise SetupError("The starter model is not where its package puts it. Delete .venv and run this again.")
    say(f"the starter model is there: {model.name}, {model.stat().st_size / 1e6:.0f} MB")
    venv.write_stamp(environment)
    return True


def setup(request: Request, environment: Environment, log: Log) -> int:
    """`setup`: make everything ready and say how to go on."""
    changed = ensure_ready(environment, log, window=True, stream=sys.stdout)
    print(f"{'Ready' if changed else 'Everything is in place'}. Open it with: {PYTHON} installer/bootstrap.py run")
    return 0


def run(request: Request, environment: Environment, log: Log) -> int:
    """`run`: set up, then become the app. Progress goes to stderr, for the app may print JSON on stdout."""
    display = has_display(os.environ, sys.platform)
    arguments = app_arguments(request.extra, display=display)
    window = not arguments or arguments[0] not in APP_COMMANDS
    ensure_ready(environment, log, window=window, stream=sys.stderr)
    command = [str(environment.program("inglenook")), *arguments]
    variables = app_variables(os.environ)
    if sys.platform == "win32":  # exec there would return to the shell at once
        return run_visible(command, variables, cwd=Path.cwd(), keep_waiting=True)
    sys.stdout.flush()
    os.execve(command[0], command, variables)


def checks(request: Request, environment: Environment) -> dict[str, list[str]]:
    """The programs of `test` by name, in order; pytest is last, so that its closing line stands near the end."""
    python = str(environment.program("python"))
    profile = [] if request.long else ["-m", "not long"]
    return {
        "ruff": [python, "-m", "ruff", "check", "."],
        "mypy": [python, "-m", "mypy"],
        "imports": [str(environment.program("lint-imports"))],
        "pytest": [python, "-m", "pytest", *profile, *request.extra],
    }


def test(request: Request, environment: Environment, log: Log) -> int:
    """`test`: set up, run all checks and tests whatever the earlier ones say, report, return the worst status."""
    ensure_ready(environment, log, window=True, stream=sys.stdout)
    variables = app_variables(os.environ)
    variables.setdefault("QT_QPA_PLATFORM", "offscreen")
    variables.setdefault("PYTHONIOENCODING", "utf-8")  # the tools print more than a Windows code page holds
    worst = 0
    report: list[str] = []
    for name, command in checks(request, environment).items():
        print(f"\n== {name}", flush=True)
        started = time.monotonic()
        status = run_visible(command, variables, cwd=environment.root)
        worst = max(worst, abs(status))
        report.append(f"{name:8} {verdict(status):24} {time.monotonic() - started:6.1f} s")
    print("\n" + "\n".join(report), flush=True)
    return worst


def verdict(status: int) -> str:
    """An exit status in words; negative ones are signals."""
    if status == 0:
        return "ok"
    return f"ended by signal {-status}" if status < 0 else f"failed (status {status})"


def lock(request: Request, environment: Environment, log: Log) -> int:
    """`lock`: resolve pyproject.toml anew into the lock, for every system and Python at once."""
    installed = environment.program("uv")
    program = str(installed) if installed.exists() else shutil.which("uv")
    if program is None:
        raise SetupError("The lock is made with uv, which is not installed. Install it with: pipx install uv")
    os.chdir(environment.root)  # uv records the paths that it is given
    ended = run_logged([program, *LOCK_ARGUMENTS, *request.extra], log)
    if ended.status != 0:
        raise SetupError("uv could not resolve pyproject.toml. The log has what it said; the lock is as it was.")
    count = len(venv.entries(environment.lock.read_text(encoding="utf-8")))
    print(f"The lock names {count} packages. It is installed by the next: {PYTHON} installer/bootstrap.py setup")
    return 0

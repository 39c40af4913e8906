"""The command line as a process: start-up, interruption, pipes and a machine without a display."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TINY = ROOT / "tests" / "data" / "gguf_llama" / "tiny-F16.gguf"
LIMIT_S = 60

PRETEND = f"""
import sys
from desktop import cli
from desktop.commands import common
from engine.fake_loader import fake_loader
loader = fake_loader(endless=True, step_s=0.002, load_s=LOAD_S)
common.loader = lambda: loader
sys.exit(cli.main([*sys.argv[1:], {str(TINY)!r}]))
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    hidden = ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM")
    kept = {key: value for key, value in os.environ.items() if key not in hidden}
    return {**kept, "INGLENOOK_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}


def start(code: str, environment: dict[str, str], *argv: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *argv],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )


def run(environment: dict[str, str], *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "desktop", *argv],
        check=False,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=LIMIT_S,
    )


def test_help_imports_nothing_heavy(environment: dict[str, str]) -> None:
    code = (
        "import sys; from desktop import cli; status = cli.main(['--help']);"
        "heavy = {'numpy', 'wgpu', 'PySide6', 'tokenizers', 'minijinja'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else status)"
    )
    process = start(code, environment)
    out, err = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, err) == (0, "")
    assert "bench" in out


def test_a_wrong_path_is_one_line(environment: dict[str, str]) -> None:
    done = run(environment, "generate", "nowhere.gguf", "--prompt", "Hi")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("inglenook: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux runs without a display")
@pytest.mark.parametrize("display", [None, ":87"])
def test_without_a_display_the_terminal_takes_over(display: str | None, environment: dict[str, str]) -> None:
    if display:
        environment["DISPLAY"] = display
    done = run(environment, "--model", "nowhere.gguf")
    assert (done.returncode, done.stdout) == (1, "")
    notice, error = done.stderr.splitlines()
    assert "no display" in notice
    assert "nowhere.gguf" in error


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT to a single process")
@pytest.mark.parametrize("load_s", [0.0, 4.0])
def test_ctrl_c_ends_at_once(load_s: float, environment: dict[str, str]) -> None:
    process = start(
        PRETEND.replace("LOAD_S", str(load_s)), environment, "generate", "--prompt", "Hi", "--context", "99999"
    )
    try:
        assert process.stdout is not None and process.stderr is not None
        (process.stderr if load_s else process.stdout).read(5)  # it is at work
        process.send_signal(signal.SIGINT)
        started = time.monotonic()
        _, err = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Traceback" not in err
    assert time.monotonic() - started < 10


@pytest.mark.skipif(sys.platform == "win32", reason="Windows reports a closed pipe in another way")
def test_a_reader_that_leaves(environment: dict[str, str]) -> None:
    process = start(PRETEND.replace("LOAD_S", "0"), environment, "generate", "--prompt", "Hi", "--context", "99999")
    try:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(5)
        process.stdout.close()
        err = process.stderr.read()
        assert process.wait(LIMIT_S) == 141
    finally:
        process.kill()
        process.stderr.close()
    assert "inglenook:" not in err
    assert "Traceback" not in err and "BrokenPipe" not in err

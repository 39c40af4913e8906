"""`inglenook serve` as a process: the address it takes, what it says, how it ends."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from desktop import cli
from desktop.commands import common, serve, terminal
from desktop.commands.options import CommandError
from engine.fake_loader import fake_loader

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
sys.exit(cli.main(["serve", {str(TINY)!r}, *sys.argv[1:]]))
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGLENOOK_HOME", str(tmp_path))
    monkeypatch.setattr(terminal, "quiet_logs", lambda: None)


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that another program listens on."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


def start(*argv: str, load_s: float = 0.0) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PRETEND.replace("LOAD_S", str(load_s)), *argv],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )


@contextmanager
def running(*argv: str, load_s: float = 0.0) -> Iterator[subprocess.Popen[str]]:
    with start(*argv, load_s=load_s) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.skipif(sys.platform == "win32", reason="no signals to a single process")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_signals_end_it_cleanly_in_the_middle_of_an_answer(number: int, status: int) -> None:
    with running("--port", "0", "--context", "99999") as process:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "answers at" in line)
        found = re.fullmatch(r"inglenook: tiny.* answers at (http://127\.0\.0\.1:\d+/v1)\. Ctrl\+C ends it\.\n", line)
        assert found, line
        body = b'{"messages": [{"role": "user", "content": "Hi"}], "stream": true}'
        with urllib.request.urlopen(f"{found[1]}/chat/completions", body, timeout=20) as answer:
            assert answer.readline().startswith(b"data: ")
            started = time.monotonic()
            process.send_signal(number)
            events = answer.read()
        out, err = process.communicate(timeout=LIMIT_S)
        assert time.monotonic() - started < 2.0
    assert (process.returncode, out, err.strip()) == (status, "", "")
    assert b'"error"' in events.splitlines()[-2]


@pytest.mark.skipif(sys.platform == "win32", reason="no signals to a single process")
def test_it_can_be_ended_while_it_loads() -> None:
    with running("--port", "0", load_s=2.0) as process:
        assert process.stderr is not None
        process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    assert "Traceback" not in err


def test_a_port_that_is_taken_is_one_line(taken: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", str(TINY), "--port", str(taken)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert f"port {taken} of 127.0.0.1 cannot be used" in line


def test_without_a_port_the_next_free_one_is_taken(
    taken: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(serve, "DEFAULT_PORT", taken)
    with serve.listening_socket("127.0.0.1", None) as sock:
        port = sock.getsockname()[1]
    assert port > taken
    notice = f"inglenook: Port {taken} is used by another program. Inglenook took {port}.\n"
    assert capsys.readouterr().err == notice


def test_a_host_that_is_none() -> None:
    with pytest.raises(CommandError, match="cannot be used"):
        serve.listening_socket("no such host", None)


@pytest.mark.parametrize(
    "argv", [["--port", "65536"], ["--port", "x"], ["--port", "-1"], ["--api-key", ""], ["--api-key", " a"]]
)
def test_wrong_usage(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", *argv]) == 2
    assert "usage: inglenook serve" in capsys.readouterr().err


def test_on_the_network_without_a_key_it_warns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(_seconds: float) -> None:
        raise KeyboardInterrupt

    before = set(threading.enumerate())
    monkeypatch.setattr(common, "loader", lambda: fake_loader())
    monkeypatch.setattr(serve, "_wait", stop)
    assert cli.main(["serve", str(TINY), "--host", "0.0.0.0", "--port", "0"]) == cli.STATUS_INTERRUPTED
    assert "Everyone on your network can use it." in capsys.readouterr().err
    assert set(threading.enumerate()) <= before

"""`inglenook` without a command: what the window is opened with, and what happens where none can open."""

import signal
import socket
import sys
import types
from pathlib import Path

import pytest

from desktop import cli
from desktop.commands import chat, window

TINY = Path(__file__).parents[1] / "data" / "gguf_llama" / "tiny-F16.gguf"
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux runs without a display")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """The arguments with which a window was opened."""
    calls: list[tuple[object, ...]] = []
    app = types.ModuleType("desktop.app")

    def run_window(model: object, adapter: object, context: object, kv_type: object, *, kernels: object) -> int:
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
        calls.append((model, adapter, context, kv_type, kernels))
        return 0

    app.run_window = run_window  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "desktop.app", app)
    monkeypatch.setattr(window, "has_display", lambda: True)
    return calls


def test_the_window_opens_with_its_options(opened: list[tuple[object, ...]]) -> None:
    before = signal.getsignal(signal.SIGINT)
    assert cli.main([]) == 0
    argv = ["--model", str(TINY), "--adapter", "Arc", "--context", "99", "--kv-type", "f32", "--kernels", "plain"]
    assert cli.main(argv) == 0
    assert opened == [(None, None, None, "f16", None), (TINY, "Arc", 99, "f32", "plain")]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_model_that_is_not_there_opens_no_window(
    opened: list[tuple[object, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["--model", "nowhere.gguf"]) == 1
    assert opened == []
    assert capsys.readouterr().err.startswith("inglenook: ")


def test_qt_that_does_not_load_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(window, "has_display", lambda: True)
    monkeypatch.delitem(sys.modules, "desktop.app", raising=False)
    monkeypatch.setitem(sys.modules, "PySide6.QtCore", None)
    assert cli.main([]) == 1
    err = capsys.readouterr().err
    assert "`inglenook chat` works" in err
    assert err.count("\n") == 1


@linux
def test_without_a_display_chat_gets_the_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM"):
        monkeypatch.delenv(name, raising=False)
    seen = []
    monkeypatch.setattr(chat, "run", lambda args: seen.append(args) or 0)
    assert cli.main(["--model", "m", "--context", "99"]) == 0
    args = seen[0]
    assert (args.model, args.context, args.adapter, args.kv_type, args.prompt) == ("m", 99, None, "f16", None)
    assert capsys.readouterr().err.count("\n") == 1


@linux
def test_a_display_counts_if_something_answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("WAYLAND_DISPLAY", "wayland-7")
    assert not window.has_display()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "wayland-7"))
        server.listen()
        assert window.has_display()
    monkeypatch.delenv("WAYLAND_DISPLAY")
    monkeypatch.setenv("DISPLAY", ":8731.0")
    assert not window.has_display()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\0/tmp/.X11-unix/X8731")
        server.listen()
        assert window.has_display()
    monkeypatch.setenv("DISPLAY", "elsewhere:10.0")
    assert window.has_display()
    monkeypatch.setenv("DISPLAY", "nonsense")
    assert not window.has_display()
    monkeypatch.setenv("QT_QPA_PLATFORM", "offscreen")
    assert window.has_display()

"""The whole window in a process of its own: what it imports first, and that it always ends."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("numpy", "wgpu", "tokenizers", "minijinja")

RUN = """
import sys, time
from pathlib import Path
from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QApplication
from desktop.app import make_application, run_window

def build():
    from engine.fake_loader import fake_loader
    from engine.threaded import ThreadedEngine
    return ThreadedEngine(fake_loader({loader}))

def window():
    (found,) = [each for each in QApplication.topLevelWidgets() if each.windowTitle() == "Inglenook"]
    return found

def then():
    {then}

make_application()
QTimer.singleShot({after}, then)
status = run_window(Path("Pretend-1B-Q4_1.gguf"), build_engine=build)
print("ended", time.monotonic())
sys.exit(status)
"""


def run(loader: str, then: str, after: int) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "QT_QPA_PLATFORM": "offscreen", "PYTHONPATH": str(ROOT)}
    script = RUN.format(loader=loader, then=then, after=after)
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True, text=True, timeout=20, cwd=ROOT, env=environment, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("load_s", [0.0, 2.0, 60.0], ids=["loaded", "loading", "in a call that can't be interrupted"])
def test_closing_ends_the_process_soon(load_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGLENOOK_HOME", str(tmp_path))
    done = run(f"load_s={load_s}", "print('closed', time.monotonic(), flush=True); window().close()", 400)
    ended = time.monotonic()
    assert done.returncode == 0, done.stderr
    closed = float(done.stdout.split()[1])
    assert ended - closed < 2.5
    assert "Traceback" not in done.stderr


def test_closing_in_the_middle_of_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGLENOOK_HOME", str(tmp_path))
    then = "window()._session.send('hello'); QTimer.singleShot(300, lambda: window().close())"
    done = run("endless=True, step_s=0.01", then, 500)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


def test_nothing_heavy_is_imported_before_the_window_is_shown() -> None:
    script = f"""
import sys
from PySide6.QtGui import QShowEvent
import desktop.app
from desktop.main_window import MainWindow
shown = MainWindow.showEvent
def show(self, event):
    shown(self, event)
    print([name for name in {HEAVY!r} if name in sys.modules])
    sys.stdout.flush()
    import os; os._exit(0)
MainWindow.showEvent = show
desktop.app.run_window()
"""
    environment = {**os.environ, "QT_QPA_PLATFORM": "offscreen", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True, text=True, timeout=20, cwd=ROOT, env=environment, check=False,
    )  # fmt: skip
    assert done.stdout.strip() == "[]", done.stderr

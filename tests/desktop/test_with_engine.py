"""The window on the real engine with a pretend model: load, template, stream, stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from desktop.app import dress, make_application
from desktop.bridge import Bridge
from desktop.main_window import MainWindow
from desktop.session import Session
from desktop.theme import Theme
from engine.fake_loader import ANSWER, fake_loader
from engine.loading import LoadOptions
from engine.threaded import ThreadedEngine


@dataclass
class Whole:
    session: Session
    bridge: Bridge
    window: MainWindow


def wait(condition: Callable[[], object], timeout_s: float = 5.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the window did not get there in time"
        QTest.qWait(5)


@pytest.fixture
def whole(qapp: QApplication, request: pytest.FixtureRequest) -> Iterator[Whole]:
    theme = Theme("light")
    dress(make_application(), theme)
    bridge = Bridge(lambda: ThreadedEngine(fake_loader(**getattr(request, "param", {}))))
    session = Session(bridge, lambda: LoadOptions(model=Path("Pretend-1B-Q4_1.gguf")))
    window = MainWindow(session, theme)
    window.show()
    yield Whole(session, bridge, window)
    ended: list[bool] = []
    bridge.stopped.connect(lambda: ended.append(True))
    bridge.shut_down(3.0)
    wait(lambda: ended)
    bridge.finish()
    window.close()
    window.deleteLater()


def test_two_turns_stream_through_the_real_engine(whole: Whole) -> None:
    wait(lambda: whole.session.state == "ready")
    for question in ("What is an inglenook?", "And again?"):
        whole.session.send(question)
        wait(lambda: whole.session.state == "ready" and whole.session.conversation.exchanges[-1].answer)
        assert whole.session.conversation.exchanges[-1].answer == ANSWER
    assert whole.window._chat.copy_last_answer()


@pytest.mark.parametrize("whole", [{"endless": True, "step_s": 0.002}], indirect=True)
def test_an_endless_answer_can_be_stopped(whole: Whole) -> None:
    wait(lambda: whole.session.state == "ready")
    whole.session.send("Go on for ever")
    wait(lambda: len(whole.session.conversation.exchanges[-1].answer) > 100)
    whole.session.stop()
    wait(lambda: whole.session.state == "ready")
    kept = whole.session.conversation.exchanges[-1].answer
    QTest.qWait(100)
    assert whole.session.conversation.exchanges[-1].answer == kept


@pytest.mark.parametrize("whole", [{"error": RuntimeError("boom")}], indirect=True)
def test_a_load_that_breaks_ends_on_the_page(whole: Whole) -> None:
    wait(lambda: whole.session.state == "failed")
    assert "boom" in whole.window._start._headline.text() + whole.window._start._line.text()

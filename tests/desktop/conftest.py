"""A window on an engine that says only what the test has it say. Leaked threads fail the test that leaked them."""

from __future__ import annotations

import os

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PySide6.QtCore import QCoreApplication, QEvent
from PySide6.QtWidgets import QApplication

from desktop.app import dress, make_application
from desktop.bridge import Bridge
from desktop.main_window import MainWindow
from desktop.session import Session
from desktop.theme import Theme, ThemeName
from engine.instructions import LoadFailed
from engine.loading import LoadedModel, LoadOptions, LoadProgress
from engine.request import Delta, Request, Timings, Usage

MODEL_FILE = Path("SmolLM2-135M-Instruct-Q4_1.gguf")
MB = 1_000_000


class ScriptedEngine:
    """The engine's face; every event is sent by the test, from a thread that is not the GUI's."""

    def __init__(self) -> None:
        self.loads: list[LoadOptions] = []
        self.requests: list[Request] = []
        self.aborted: list[str] = []
        self.shut_down = False
        self._on_event: Callable[[object], None] | None = None
        self._on_delta: dict[str, Callable[[Delta], None]] = {}

    def load(self, options: LoadOptions, on_event: Callable[[object], None]) -> None:
        self.loads.append(options)
        self._on_event = on_event

    def add_request(self, request: Request, on_delta: Callable[[Delta], None]) -> None:
        self.requests.append(request)
        self._on_delta[request.request_id] = on_delta

    def abort_request(self, request_id: str) -> None:
        self.aborted.append(request_id)
        if request_id in self._on_delta:
            self.say_to(request_id, Delta(request_id=request_id, finish_reason="abort"))

    def shutdown(self, timeout_s: float = 5.0) -> None:
        self.shut_down = True

    def progress(self, done_mb: float, total_mb: float) -> None:
        event = LoadProgress(stage="Loading weights", done_bytes=int(done_mb * MB), total_bytes=int(total_mb * MB))
        self._call(self._on_event, event)

    def ready(self, **changes: Any) -> None:
        self._call(self._on_event, loaded_model(**changes))

    def fail_load(self, message: str) -> None:
        self._call(self._on_event, LoadFailed(message))

    def say(self, text: str, tokens: int = 1) -> None:
        """More of the newest request's answer."""
        request_id = self.requests[-1].request_id
        self.say_to(request_id, Delta(request_id=request_id, text=text, token_ids=tuple(range(tokens))))

    def finish(self, reason: str = "stop", *, error: str | None = None, cached: int = 0) -> None:
        """End the newest request's answer."""
        request_id = self.requests[-1].request_id
        done = None if error else Usage(prompt_tokens=2103, completion_tokens=12, cached_tokens=cached)
        timed = None if error else Timings(ttft_s=0.41, prefill_tokens_per_s=300.0, decode_tokens_per_s=24.31)
        delta = Delta(request_id=request_id, finish_reason=reason, error=error, usage=done, timings=timed)  # type: ignore[arg-type]
        self.say_to(request_id, delta)

    def say_to(self, request_id: str, delta: Delta) -> None:
        self._call(self._on_delta[request_id], delta)

    @staticmethod
    def _call(callback: Callable[[Any], None] | None, event: object) -> None:
        assert callback is not None
        thread = threading.Thread(target=callback, args=(event,))
        thread.start()
        thread.join()


def loaded_model(
    name: str = "SmolLM2 135M", adapter: str = "Radeon 780M Graphics", software: bool = False, context: int = 8192
) -> LoadedModel:
    """A model whose template makes one token of every character."""

    def prompt_ids(messages: list[dict[str, str]], _tokenizer: object, *, answers: object) -> list[int]:
        return [ord(char) for message in messages for char in message["content"]]

    template = SimpleNamespace(prompt_ids=prompt_ids)
    return LoadedModel(
        name=name,
        path=MODEL_FILE,
        quantization="Q4_1",
        adapter=adapter,
        software_adapter=software,
        context_length=context,
        load_s=0.5,
        weight_bytes=98 * MB,
        tokenizer=SimpleNamespace(),  # type: ignore[arg-type]
        chat_template=template,  # type: ignore[arg-type]
        table=SimpleNamespace(),  # type: ignore[arg-type]
    )


@dataclass
class App:
    """One window and what stands behind it."""

    engine: ScriptedEngine
    bridge: Bridge
    session: Session
    theme: Theme
    window: MainWindow
    _done: list[bool] = field(default_factory=list)

    def wait(self, condition: Callable[[], object], timeout_s: float = 3.0) -> None:
        """Run the event loop until the condition holds."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, "the window did not get there in time"
            QApplication.processEvents()
            time.sleep(0.005)
        QApplication.processEvents()

    def settle(self) -> None:
        """Let everything that was said arrive."""
        self.wait(lambda: not self.bridge._events)
        for _ in range(3):
            QApplication.processEvents()

    def ask(self, text: str) -> None:
        """Send a message and wait until the engine has it."""
        before = len(self.engine.requests)
        self.session.send(text)
        self.wait(lambda: len(self.engine.requests) > before)

    def close(self) -> None:
        """Take the window down as the application does."""
        self.bridge.shut_down(1.0)
        self.wait(lambda: self.engine.shut_down or self.bridge._engine is None)
        self.settle()
        self.bridge.finish()
        self.window.close()
        self.window.deleteLater()
        QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete)


def build(theme: ThemeName = "light", *, show: bool = True) -> App:
    """A window in a theme, its load begun but without any event yet."""
    application = make_application()
    engine = ScriptedEngine()
    look = Theme(theme)
    dress(application, look)
    bridge = Bridge(lambda: engine)
    session = Session(bridge, lambda: LoadOptions(model=MODEL_FILE))
    window = MainWindow(session, look)
    app = App(engine, bridge, session, look, window)
    if show:
        window.show()
        app.wait(lambda: engine.loads)
        app.settle()
    return app


def running_threads() -> set[threading.Thread]:
    """Python's threads. The pool's are Qt's: Python keeps a dummy for each, long after it has ended."""
    return {thread for thread in threading.enumerate() if not isinstance(thread, threading._DummyThread)}


@pytest.fixture
def app(qapp: QApplication) -> Iterator[App]:
    """A window that waits for its model."""
    before = running_threads()
    made = build()
    yield made
    made.close()
    deadline = time.monotonic() + 2
    while (left := running_threads() - before) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not left, f"threads left behind: {left}"
    assert made.bridge._pool.activeThreadCount() == 0


@pytest.fixture
def ready(app: App) -> App:
    """A window whose model is loaded."""
    app.engine.ready()
    app.wait(lambda: app.session.state == "ready")
    return app

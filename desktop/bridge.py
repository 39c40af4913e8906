"""Where the engine's threads and the window meet: calls go down from the GUI thread, events come up through a deque.

The only QObject that other threads reach. They append to the deque and touch nothing else; a 33 ms timer on the GUI
thread empties it and emits the signals, and runs only while something is expected. The engine is built on a worker,
because importing it takes longer than showing a window. Created on the GUI thread; knows no widget.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from PySide6.QtCore import QObject, QThreadPool, QTimer, Signal

from engine.errors import EngineError
from engine.request import Delta, Request, SamplingParams

if TYPE_CHECKING:
    from engine.loading import LoadedModel, LoadOptions

_log = logging.getLogger(__name__)

DRAIN_MS = 33


class EngineFace(Protocol):
    """What the window uses of ThreadedEngine; every call returns at once, except shutdown."""

    def load(self, options: LoadOptions, on_event: Callable[[object], None]) -> None: ...

    def add_request(self, request: Request, on_delta: Callable[[Delta], None]) -> None: ...

    def abort_request(self, request_id: str) -> None: ...

    def shutdown(self, timeout_s: float = 5.0) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What one answer needs: the turns as (role, content), the last one the user's, and how tokens are drawn."""

    request_id: str
    model: LoadedModel
    turns: tuple[tuple[str, str], ...]
    sampling: SamplingParams


class Bridge(QObject):
    """Calls for the GUI thread, and the engine's events as signals of the GUI thread."""

    load_began = Signal(object)  # LoadOptions: the file is known
    load_progressed = Signal(object)  # LoadProgress
    model_ready = Signal(object)  # LoadedModel
    load_failed = Signal(str)
    prompt_counted = Signal(str, int)  # request id, prompt tokens
    deltas_arrived = Signal(list)  # list[Delta], in order
    stopped = Signal()  # the engine is shut down

    def __init__(self, build_engine: Callable[[], EngineFace], parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._build_engine = build_engine
        self._engine: EngineFace | None = None
        self._engine_lock = threading.Lock()
        self._options: LoadOptions | None = None  # of the last load
        self._closing = threading.Event()
        self._events: deque[Callable[[], None] | Delta] = deque()
        self._expected: set[str] = set()  # the load, open requests and the shutdown; GUI thread
        self._aborted: set[str] = set()  # ids that must not be added any more; set operations are atomic
        self._pool = QThreadPool(self)
        self._pool.setMaxThreadCount(2)
        self._timer = QTimer(self)
        self._timer.setInterval(DRAIN_MS)
        self._timer.timeout.connect(self._drain)

    def load(self, options: Callable[[], LoadOptions]) -> None:
        """Load a model. `options` runs on a worker too: finding the file may take a while."""
        self._expect("load")
        threading.Thread(target=self._load, args=(options,), name="inglenook-load", daemon=True).start()

    def ask(self, question: Question, *, reload: bool = False) -> None:
        """Answer the last turn. Template and tokenizer run on a worker, which then hands the request over.

        `reload` loads the model again first if the engine has lost it, as it does when its device fails.
        """
        self._expect(question.request_id)
        self._pool.start(lambda: self._ask(question, reload))

    def in_background(self, work: Callable[[], object]) -> None:
        """Run something short on a worker whose outcome nobody waits for."""
        self._pool.start(lambda: work())

    def abort(self, request_id: str) -> None:
        """End a request; its stream still ends with a delta."""
        self._aborted.add(request_id)
        if self._engine is not None:
            self._engine.abort_request(request_id)

    def shut_down(self, timeout_s: float) -> None:
        """Shut the engine down on a worker; `stopped` follows when it is down."""
        self._closing.set()
        self._expect("shutdown")
        threading.Thread(target=self._shut_down, args=(timeout_s,), name="inglenook-shutdown", daemon=True).start()

    def finish(self) -> None:
        """Stop listening, and wait for a prompt that is still being built; nothing may be called afterwards."""
        self._timer.stop()
        self._pool.waitForDone(1000)

    # From here on: worker and engine threads. They only append to the deque.

    def _load(self, options: Callable[[], LoadOptions]) -> None:
        try:
            resolved = self._options = options()
            self._events.append(lambda: self.load_began.emit(resolved))
            with self._engine_lock:
                if self._closing.is_set():
                    return
                if self._engine is None:
                    self._engine = self._build_engine()
            self._engine.load(resolved, self._load_event)
        except Exception as error:  # noqa: BLE001  top of a thread: whatever went wrong belongs on the page
            _log.exception("loading failed before the engine took over")
            self._fail_load(_sentence(error))

    def _load_event(self, event: object) -> None:
        from engine.instructions import LoadFailed
        from engine.loading import LoadedModel, LoadProgress

        if isinstance(event, LoadProgress):
            self._events.append(lambda: self.load_progressed.emit(event))
        elif isinstance(event, LoadedModel):
            self._events.append(lambda: self._end("load", lambda: self.model_ready.emit(event)))
        elif isinstance(event, LoadFailed) and not event.cancelled:
            self._fail_load(event.message)
        else:  # cancelled: this load ends because the window closes
            self._events.append(lambda: self._end("load", lambda: None))

    def _fail_load(self, message: str) -> None:
        self._events.append(lambda: self._end("load", lambda: self.load_failed.emit(message)))

    def _ask(self, question: Question, reload: bool) -> None:
        request_id = question.request_id
        try:
            prompt = _prompt_ids(question)
            self._events.append(lambda: self.prompt_counted.emit(request_id, len(prompt)))
            engine, options = self._engine, self._options
            if engine is None or options is None or request_id in self._aborted:
                self._events.append(Delta(request_id=request_id, finish_reason="abort"))
                return
            if reload:  # does nothing where the model is still there; where it is not, the request waits for it
                engine.load(options, lambda _event: None)
            request = Request(request_id=request_id, prompt_ids=tuple(prompt), sampling=question.sampling)
            engine.add_request(request, self._events.append)
            if request_id in self._aborted:  # the abort came between the look and the call
                engine.abort_request(request_id)
        except Exception as error:  # noqa: BLE001  top of a worker: the error belongs on the request's stream
            _log.exception("a prompt could not be built")
            self._events.append(Delta(request_id=request_id, finish_reason="error", error=_sentence(error)))

    def _shut_down(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        if not self._engine_lock.acquire(timeout=timeout_s):  # the engine is still being imported
            return
        try:
            if self._engine is not None:
                self._engine.shutdown(max(0.1, deadline - time.monotonic()))
        except EngineError:
            _log.exception("the engine did not shut down")
        finally:
            self._engine_lock.release()
        self._events.append(lambda: self._end("shutdown", self.stopped.emit))

    # From here on: GUI thread.

    def _expect(self, what: str) -> None:
        self._expected.add(what)
        self._timer.start()

    def _end(self, what: str, then: Callable[[], None]) -> None:
        self._expected.discard(what)
        then()

    def _drain(self) -> None:
        deltas: list[Delta] = []
        for _ in range(len(self._events)):
            event = self._events.popleft()
            if isinstance(event, Delta):
                deltas.append(event)
            else:
                event()
        if deltas:
            for delta in deltas:
                if delta.finish_reason is not None:
                    self._expected.discard(delta.request_id)
                    self._aborted.discard(delta.request_id)
            self.deltas_arrived.emit(deltas)
        if not self._expected and not self._events:
            self._timer.stop()


def _prompt_ids(question: Question) -> list[int]:
    from models.chat_template import Message

    messages = [Message(role=role, content=content) for role, content in question.turns]
    return question.model.chat_template.prompt_ids(messages, question.model.tokenizer, answers=question.model.answers)


def _sentence(error: Exception) -> str:
    return str(error) or f"An unexpected error happened: {type(error).__name__}."

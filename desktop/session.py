"""What the window does, without widgets: one model, one chat, one answer at a time.

Owns the conversation, the message that waits for its turn, and the request that is open. Knows the engine through the
bridge only. GUI thread.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from PySide6.QtCore import QObject, Signal

from desktop.bridge import Bridge, Question
from desktop.conversation import Conversation
from engine.request import Delta, SamplingParams

if TYPE_CHECKING:
    from engine.loading import LoadedModel, LoadOptions

State = Literal["loading", "failed", "ready", "answering"]

# GGUF files rarely carry sampling defaults. These keep a small model's answers lively and on the subject.
TEMPERATURE = 0.7
TOP_P = 0.9


class Session(QObject):
    """One chat with one model, as calls and signals."""

    state_changed = Signal(str)
    load_began = Signal(object)  # LoadOptions
    load_progressed = Signal(object)  # LoadProgress
    model_ready = Signal(object)  # LoadedModel
    load_failed = Signal(str)
    question_asked = Signal(str)
    question_repeated = Signal()  # the last question is asked again; its answer starts anew
    answer_grew = Signal(str, int)  # new text, new tokens
    answer_ended = Signal(object)  # the last Delta
    waiting_changed = Signal(str)  # the message that is sent next, or nothing
    message_returned = Signal(str)  # a waiting message that is not sent after all
    context_changed = Signal(int)  # tokens in the context
    cleared = Signal()

    def __init__(self, bridge: Bridge, options: Callable[[], LoadOptions], parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._bridge = bridge
        self._options = options
        self.model: LoadedModel | None = None
        self.state: State = "loading"
        self.conversation = Conversation()
        self.waiting = ""
        self._request_id = ""
        self._context = 0
        self._suspect = False  # the last answer failed, perhaps because the engine lost its model
        bridge.load_began.connect(self.load_began)
        bridge.load_progressed.connect(self.load_progressed)
        bridge.model_ready.connect(self._on_model_ready)
        bridge.load_failed.connect(self._on_load_failed)
        bridge.prompt_counted.connect(self._on_prompt_counted)
        bridge.deltas_arrived.connect(self._on_deltas)

    def load(self) -> None:
        """Load the model, at the start and after a failure."""
        self._set_state("loading")
        self._bridge.load(self._options)

    def send(self, text: str) -> None:
        """Ask now if the model is free, else keep the message until it is. Further messages join the kept one."""
        text = text.strip()
        if not text:
            return
        if self.state == "ready":
            self.conversation.ask(text)
            self.question_asked.emit(text)
            self._request()
        else:
            self._set_waiting(f"{self.waiting}\n\n{text}" if self.waiting else text)

    def take_back(self) -> str:
        """Return the waiting message, which then waits no longer."""
        text = self.waiting
        self._set_waiting("")
        return text

    def stop(self) -> None:
        """End the answer that is being written; what is there stays."""
        if self.state == "answering":
            self._bridge.abort(self._request_id)

    def answer_again(self) -> None:
        """Ask the last question again in place of its answer."""
        if self.state == "ready" and self.conversation.exchanges:
            self.conversation.forget_answer()
            self.question_repeated.emit()
            self._request()

    def new_chat(self) -> None:
        """Start with an empty conversation."""
        if self.state == "answering":
            self._bridge.abort(self._request_id)
            self._request_id = ""  # what still arrives for it belongs to nobody
            self._set_state("ready")
        self.conversation = Conversation()
        self._set_waiting("")
        self._set_context(0)
        self.cleared.emit()

    def _request(self) -> None:
        assert self.model is not None
        self._request_id = f"chat-{uuid.uuid4().hex}"
        self._set_state("answering")
        question = Question(
            request_id=self._request_id,
            model=self.model,
            turns=tuple(self.conversation.turns()),
            sampling=SamplingParams(temperature=TEMPERATURE, top_p=TOP_P, seed=secrets.randbits(63)),
        )
        self._bridge.ask(question, reload=self._suspect)

    def _on_model_ready(self, model: LoadedModel) -> None:
        self.model = model
        self.model_ready.emit(model)
        self._set_state("ready")
        self._send_waiting()

    def _on_load_failed(self, message: str) -> None:
        self._set_state("failed")
        self.load_failed.emit(message)

    def _on_prompt_counted(self, request_id: str, count: int) -> None:
        if request_id == self._request_id:
            self._set_context(count)

    def _on_deltas(self, deltas: list[Delta]) -> None:
        ours = [delta for delta in deltas if delta.request_id == self._request_id]
        if not ours:
            return
        text = "".join(delta.text for delta in ours)
        tokens = sum(len(delta.token_ids) for delta in ours)
        if text or tokens:
            self.conversation.extend_answer(text)
            self.answer_grew.emit(text, tokens)
            self._set_context(self._context + tokens)
        last = ours[-1]
        if last.finish_reason is not None:
            self._end_answer(last)

    def _end_answer(self, last: Delta) -> None:
        self._request_id = ""
        if last.usage is not None:
            self._set_context(last.usage.prompt_tokens + last.usage.completion_tokens)
        self._suspect = last.finish_reason == "error"
        self._set_state("ready")
        self.answer_ended.emit(last)
        if last.finish_reason != "error":
            self._send_waiting()
        elif self.waiting:  # it was written in view of an answer that never came: a person decides
            self.message_returned.emit(self.take_back())

    def _send_waiting(self) -> None:
        if self.waiting:
            self.send(self.take_back())

    def _set_state(self, state: State) -> None:
        if state != self.state:
            self.state = state
            self.state_changed.emit(state)

    def _set_waiting(self, text: str) -> None:
        if text != self.waiting:
            self.waiting = text
            self.waiting_changed.emit(text)

    def _set_context(self, tokens: int) -> None:
        if tokens != self._context:
            self._context = tokens
            self.context_changed.emit(tokens)

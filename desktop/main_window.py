"""The window: lays the parts out and connects them with the session. Layout and actions, no logic. GUI thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtGui import QAction, QCloseEvent, QContextMenuEvent, QKeySequence, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QHBoxLayout, QMainWindow, QMenu, QVBoxLayout, QWidget

from desktop import words
from desktop.chat_view import MARGIN, SCROLL_BAR, ChatView
from desktop.composer import Composer
from desktop.controls import Notice, Pulse
from desktop.focus_ring import FocusRing
from desktop.header import Header
from desktop.icons import window_icon
from desktop.session import Session, State
from desktop.start_page import StartPage
from desktop.theme import Theme

if TYPE_CHECKING:
    from engine.loading import LoadedModel, LoadOptions, LoadProgress
    from engine.request import Delta

MINIMUM = (720, 520)
START = (1180, 760)
COMPOSER_WIDTH = 760
START_WIDTH = 680


class MainWindow(QMainWindow):
    """One chat: header, transcript or start page, composer."""

    closed = Signal()

    def __init__(self, session: Session, theme: Theme, model_name: str = "") -> None:
        super().__init__()
        self._session, self._theme = session, theme
        self._model_name = model_name
        self._was_shown = False
        self._notice: Notice | None = None
        self._pulse = Pulse(self)
        self.setWindowTitle("Inglenook")
        self.setMinimumSize(*MINIMUM)
        self.resize(*START)
        self.setWindowIcon(window_icon(theme.tokens.ink, theme.tokens.fire))
        self._actions = self._make_actions()
        new_chat_keys = self._actions["New chat"].shortcut().toString(QKeySequence.SequenceFormat.NativeText)
        self._header = Header(theme, new_chat_keys)
        self._start = StartPage(theme)
        self._chat = ChatView(theme, self._pulse)
        self._composer = Composer(theme)
        self._lay_out()
        self._ring = FocusRing(self, theme)
        self._connect_parts()
        self._connect_session()
        self._show_loading(None)
        self._show_chat(False)
        self._on_state(session.state)
        self._composer.setFocus()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        if not self._was_shown:
            self._was_shown = True
            QTimer.singleShot(0, self, self._session.load)  # the window is on the screen first

    def closeEvent(self, event: QCloseEvent) -> None:
        self.hide()
        self.closed.emit()
        event.accept()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit_columns()

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        menu = QMenu(self)
        menu.addActions([self._actions[name] for name in ("New chat", "Copy last answer", "Copy chat")])
        menu.exec(event.globalPos())
        menu.deleteLater()

    def _lay_out(self) -> None:
        page = QWidget()
        page.setObjectName("page")
        page.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        column = QVBoxLayout(page)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(0)
        column.addWidget(self._header)
        self._notice_place = QVBoxLayout()
        column.addLayout(self._notice_place)
        self._above = column.count()
        column.addStretch(0)
        column.addLayout(_centred(self._start))
        column.addWidget(self._chat, 1)
        column.addLayout(_centred(self._composer))
        column.addSpacing(20)
        self._below = column.count()
        column.addStretch(0)
        self._column = column
        self.setCentralWidget(page)

    def _make_actions(self) -> dict[str, QAction]:
        wanted: list[tuple[str, str, Callable[[], object]]] = [
            ("New chat", "Ctrl+N", self._session.new_chat),
            ("Copy last answer", "Ctrl+Shift+C", lambda: self._chat.copy_last_answer()),
            ("Copy chat", "", lambda: self._chat.copy_all()),
            ("Write a message", "Ctrl+L", lambda: self._composer.setFocus(Qt.FocusReason.ShortcutFocusReason)),
            ("Stop", "Esc", self._session.stop),
            ("Quit", "Ctrl+Q", self.close),
        ]
        actions: dict[str, QAction] = {}
        for text, keys, run in wanted:
            action = QAction(text, self)
            if keys:
                action.setShortcut(QKeySequence(keys))
            action.triggered.connect(lambda _checked=False, run=run: run())
            self.addAction(action)
            actions[text] = action
        return actions

    def _connect_parts(self) -> None:
        session = self._session
        self._header.new_chat_wanted.connect(session.new_chat)
        self._start.retry_wanted.connect(session.load)
        self._chat.new_chat_wanted.connect(session.new_chat)
        self._chat.again_wanted.connect(session.answer_again)
        self._composer.sent.connect(session.send)
        self._composer.stop_wanted.connect(session.stop)
        self._composer.taken_back.connect(lambda: self._composer.put_back(session.take_back()))
        self._composer.page_wanted.connect(self._chat.scroll_page)

    def _connect_session(self) -> None:
        session = self._session
        session.state_changed.connect(self._on_state)
        session.load_began.connect(self._on_load_began)
        session.load_progressed.connect(self._show_loading)
        session.model_ready.connect(self._on_model_ready)
        session.load_failed.connect(self._start.show_failed)
        session.question_asked.connect(self._on_question)
        session.question_repeated.connect(self._chat.ask_again)
        session.answer_grew.connect(self._chat.grow)
        session.answer_ended.connect(self._on_answer_ended)
        session.waiting_changed.connect(self._on_waiting)
        session.message_returned.connect(self._composer.put_back)
        session.context_changed.connect(self._on_context)
        session.cleared.connect(self._on_cleared)

    def _on_state(self, state: State) -> None:
        self._composer.set_answering(state == "answering")
        self._composer.setVisible(state != "failed")
        if state == "failed":
            self._show_chat(False)
        if state == "loading":
            self._show_loading(None)
        self._on_waiting(self._session.waiting)
        if state == "answering":
            self._composer.set_placeholder(words.NEXT_MESSAGE)
        else:
            name = self._session.model.name if self._session.model else self._model_name
            self._composer.set_placeholder(f"Message {name}" if name else "Write a message")

    def _on_load_began(self, options: LoadOptions) -> None:
        self._model_name = words.model_name(options.model)
        self._show_loading(None)
        self._on_state(self._session.state)

    def _show_loading(self, progress: LoadProgress | None) -> None:
        self._header.show_name(self._model_name or "Inglenook")
        self._start.show_loading(self._model_name, progress)

    def _on_model_ready(self, model: LoadedModel) -> None:
        self._header.show_model(model)
        self._start.show_ready(model)
        self._on_context(0)
        self._close_notice()
        if model.software_adapter:
            self._notice = Notice(self._theme, "warn", words.RUNS_SLOWLY, closable=True)
            self._notice.closed.connect(self._close_notice)
            self._notice_place.addLayout(_centred(self._notice, top=12, bottom=8))
            self._fit_columns()

    def _on_question(self, text: str) -> None:
        self._show_chat(True)
        self._chat.ask(text)

    def _on_answer_ended(self, last: Delta) -> None:
        self._chat.end(last)

    def _on_waiting(self, text: str) -> None:
        answering = self._session.state == "answering"
        self._composer.set_waiting(text, "Sent when this answer ends" if answering else "Sent when the model is ready")

    def _on_context(self, tokens: int) -> None:
        model = self._session.model
        self._composer.set_count(words.context_count(tokens, model.context_length) if model else "")

    def _on_cleared(self) -> None:
        self._chat.clear()
        self._show_chat(False)
        self._composer.setFocus()

    def _close_notice(self) -> None:
        if self._notice is not None:
            self._notice.hide()
            self._notice_place.takeAt(0)
            self._notice.deleteLater()
            self._notice = None

    def _show_chat(self, shown: bool) -> None:
        """The transcript with the composer below it, or the start page with the composer in the middle."""
        self._chat.setVisible(shown)
        self._start.setVisible(not shown)
        self._column.setStretch(self._above, 0 if shown else 4)
        self._column.setStretch(self._below, 0 if shown else 5)
        self._fit_columns()

    def _fit_columns(self) -> None:
        room = self.width() - 2 * MARGIN - SCROLL_BAR
        start = min(START_WIDTH, room)
        self._start.setFixedWidth(start)
        self._composer.setFixedWidth(start if self._start.isVisibleTo(self) else min(COMPOSER_WIDTH, room))
        if self._notice is not None:
            self._notice.setFixedWidth(min(COMPOSER_WIDTH, room))


def _centred(widget: QWidget, *, top: int = 0, bottom: int = 0) -> QHBoxLayout:
    """The widget in the middle of what the scroll bar leaves, so that all columns share one axis."""
    row = QHBoxLayout()
    row.setContentsMargins(0, top, SCROLL_BAR, bottom)
    row.addStretch(1)
    row.addWidget(widget)
    row.addStretch(1)
    return row

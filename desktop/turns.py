"""The turns of the transcript: a question in a bubble, and an answer with its actions and its stats line.

Knows one turn each, not the chat. GUI thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from PySide6.QtCore import QMargins, Qt
from PySide6.QtGui import QGuiApplication, QResizeEvent, QTextBlockFormat, QTextCursor
from PySide6.QtWidgets import QFrame, QHBoxLayout, QSizePolicy, QVBoxLayout, QWidget

from desktop import words
from desktop.controls import Embers, IconButton, Notice, Pulse, announce, text_label
from desktop.rich_text import AnswerText, SelectableText
from desktop.theme import Theme
from engine.request import Delta

BUBBLE_WIDTH = 560
GUTTER = 6  # beside every text, so that the icons of buttons can stand on its edge
_STOPPED = "The answer could not go on."
_BUBBLE_PADDING = QMargins(16, 8, 16, 5)  # the line's own room is above the letters


class QuestionTurn(QWidget):
    """What the user wrote, at the right, as wide as its text but no wider than the bubble may be."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.source = text
        self._text = SelectableText("Copy message")
        self._text.setAccessibleName("Your message")
        self._text.setPlainText(text)
        self._text.copy_all.connect(lambda: QGuiApplication.clipboard().setText(text))
        _set_line_height(self._text)
        self._bubble = QFrame()
        self._bubble.setObjectName("bubble")
        inner = QVBoxLayout(self._bubble)
        inner.setContentsMargins(_BUBBLE_PADDING)
        inner.addWidget(self._text)
        row = QHBoxLayout(self)
        row.setSpacing(0)
        row.addStretch(1)
        row.addWidget(self._bubble)
        row.addSpacing(GUTTER)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        sides = _BUBBLE_PADDING.left() + _BUBBLE_PADDING.right()
        room = min(BUBBLE_WIDTH, self.width() - 2 * GUTTER) - sides
        document = self._text.document().clone()
        document.setTextWidth(room)
        self._bubble.setFixedWidth(min(room, int(document.idealWidth()) + 2) + sides)


class AnswerTurn(QWidget):
    """What the model wrote, plain, with the line below it and the notice of what went wrong."""

    def __init__(self, theme: Theme, pulse: Pulse) -> None:
        super().__init__()
        self._theme = theme
        self._asked_at = time.monotonic()
        self._first_at: float | None = None
        self._tokens = 0
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        self.text = AnswerText(theme, pulse)
        self.text.copy_all.connect(self.copy)
        self.text.hide()
        self._embers = Embers(theme, pulse)
        self._copy = IconButton(theme, "copy", "Copy answer", size=28, icon_size=16)
        self._copy.clicked.connect(self.copy)
        self._copy.hide()
        self._stats = text_label("Reading", ink="ink3", pixels=12)
        footer = QHBoxLayout()
        footer.setSpacing(6)
        footer.addWidget(self._embers)
        footer.addWidget(self._copy)
        footer.addWidget(self._stats, 1)
        self._column = QVBoxLayout(self)
        self._column.setSpacing(6)
        self._column.addLayout(_inset(self.text))
        self._column.addLayout(footer)
        self.text.set_streaming(True)

    @property
    def source(self) -> str:
        """The answer as the model wrote it."""
        return self.text.stream.source

    def grow(self, text: str, tokens: int) -> None:
        """Write more of the answer and keep the stats line current."""
        now = time.monotonic()
        if self._first_at is None:
            self._first_at = now
        self._tokens += tokens
        if text:
            self.text.show()
            self.text.append_markdown(text)
        elapsed = now - self._first_at
        self._stats.setText(words.live_stats(self._tokens, elapsed, self._first_at - self._asked_at))

    def end(self, last: Delta, actions: list[tuple[str, Callable[[], object]]]) -> None:
        """Show how the answer ended. `actions` are the ways out that an error or a full context offers."""
        self.text.set_streaming(False)
        self._embers.hide()
        self._copy.setVisible(bool(self.source))
        self._stats.setText(words.stats(last))
        self._stats.setVisible(bool(self._stats.text() or self.source))
        if last.finish_reason == "error":
            title, rest = words.headline_and_rest(last.error or _STOPPED, _STOPPED)
            self._notice(Notice(self._theme, "err", title, rest), actions)
        elif last.finish_reason == "length":
            title = words.context_reached(last.usage)
            self._notice(
                Notice(self._theme, "warn", title, "The model can't take in more, so the answer ends here."), actions
            )
        else:
            announce(self, "Answer stopped." if last.finish_reason == "abort" else f"Answer: {self.source}")

    def copy(self) -> None:
        """Put the answer's Markdown on the clipboard."""
        QGuiApplication.clipboard().setText(self.source)
        self._copy.confirm()

    def _notice(self, notice: Notice, actions: list[tuple[str, Callable[[], object]]]) -> None:
        for words_of_action, action in actions:
            notice.add_button(words_of_action, action)
        self._column.addSpacing(4)
        self._column.addLayout(_inset(notice))


def _inset(widget: QWidget) -> QHBoxLayout:
    row = QHBoxLayout()
    row.setContentsMargins(GUTTER, 0, GUTTER, 0)
    row.addWidget(widget)
    return row


def _set_line_height(text: SelectableText) -> None:
    cursor = QTextCursor(text.document())
    cursor.select(QTextCursor.SelectionType.Document)
    block_format = QTextBlockFormat()
    block_format.setLineHeight(134, QTextBlockFormat.LineHeightTypes.ProportionalHeight.value)
    cursor.mergeBlockFormat(block_format)
    text.setAlignment(Qt.AlignmentFlag.AlignLeft)

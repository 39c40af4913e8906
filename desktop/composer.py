"""Where messages are written: a box that grows with its text, with send, which is stop while an answer is written.

Enter sends, Shift+Enter breaks the line. Shows the message that waits for its turn. Knows no engine; what
is sent leaves as a signal. GUI thread.
"""

from __future__ import annotations

from PySide6.QtCore import QMimeData, QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QFocusEvent, QKeyEvent, QPainter, QPaintEvent, QResizeEvent, QTextOption
from PySide6.QtWidgets import QFrame, QHBoxLayout, QPlainTextEdit, QPushButton, QVBoxLayout

from desktop.controls import ElidedLabel, IconButton, announce, repolish, text_label
from desktop.icons import icon_pixmap
from desktop.theme import Theme, font

MAX_LINES = 10
_LINE = 24


class Composer(QFrame):
    """The box under the transcript."""

    sent = Signal(str)
    stop_wanted = Signal()
    taken_back = Signal()  # the waiting message shall not be sent
    page_wanted = Signal(int)  # scroll the transcript: -1 up, 1 down

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._answering = False
        self.setObjectName("composer")
        self._editor = _Editor()
        self._editor.textChanged.connect(self._on_text)
        self._editor.submitted.connect(self._send)
        self._editor.page_wanted.connect(self.page_wanted)
        self._editor.focus_changed.connect(lambda focused: repolish(self, "focused", focused))
        self._waiting = _Waiting(theme)
        self._waiting.closed.connect(self.taken_back)
        self._waiting.hide()
        self._hint = text_label(ink="ink3", pixels=12)
        self._count = text_label(ink="ink2", pixels=12)
        self._button = SendButton(theme)
        self._button.clicked.connect(self._on_button)
        tools = QHBoxLayout()
        tools.setContentsMargins(0, 0, 0, 0)
        tools.setSpacing(12)
        tools.addWidget(self._hint)
        tools.addStretch(1)
        tools.addWidget(self._count)
        tools.addWidget(self._button)
        column = QVBoxLayout(self)
        column.setContentsMargins(16, 14, 10, 10)
        column.setSpacing(8)
        column.addWidget(self._waiting)
        column.addWidget(self._editor)
        column.addLayout(tools)
        self.setFocusProxy(self._editor)
        self.set_answering(False)

    @property
    def text(self) -> str:
        """What is written and not sent."""
        return self._editor.toPlainText()

    def set_placeholder(self, text: str) -> None:
        """What the empty box says."""
        self._editor.setPlaceholderText(text)
        self._editor.viewport().update()  # which Qt leaves out where one text takes another's place
        self._editor.setAccessibleName(text)

    def set_answering(self, answering: bool) -> None:
        """Make the button stop, or send again."""
        self._answering = answering
        self._button.set_stop(answering)
        self._hint.setText("Esc stops the answer" if answering else "Enter sends, Shift+Enter starts a new line")
        self._on_text()

    def set_count(self, text: str) -> None:
        """How full the context is, in words."""
        self._count.setText(text)

    def set_waiting(self, text: str, when: str) -> None:
        """Show the message that waits, and when it is sent; an empty one hides the row."""
        self._waiting.show_message(text, when)

    def put_back(self, text: str) -> None:
        """Put a message that was not sent in front of what is written."""
        rest = self.text
        self._editor.setPlainText(f"{text}\n\n{rest}" if rest else text)
        self._editor.moveCursor(self._editor.textCursor().MoveOperation.End)
        self._editor.setFocus()

    def _on_button(self) -> None:
        if self._answering:
            self.stop_wanted.emit()
        else:
            self._send()

    def _send(self) -> None:
        text = self.text
        if text.strip():
            self._editor.clear()
            self.sent.emit(text)

    def _on_text(self) -> None:
        self._button.setEnabled(self._answering or bool(self.text.strip()))


class _Editor(QPlainTextEdit):
    """Plain text from 1 to 10 lines high."""

    submitted = Signal()
    page_wanted = Signal(int)
    focus_changed = Signal(bool)

    def __init__(self) -> None:
        super().__init__()
        self.setFont(font(15))
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setTabChangesFocus(True)
        self.setWordWrapMode(QTextOption.WrapMode.WrapAtWordBoundaryOrAnywhere)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.document().setDocumentMargin(0)
        self.textChanged.connect(self._fit)
        self._fit()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        key, shift = event.key(), bool(event.modifiers() & Qt.KeyboardModifier.ShiftModifier)
        if key in (Qt.Key.Key_Return, Qt.Key.Key_Enter) and not shift:
            self.submitted.emit()
        elif key in (Qt.Key.Key_PageUp, Qt.Key.Key_PageDown) and self._rows() <= MAX_LINES:
            self.page_wanted.emit(-1 if key == Qt.Key.Key_PageUp else 1)
        else:
            super().keyPressEvent(event)

    def insertFromMimeData(self, source: QMimeData) -> None:
        if source.hasText():  # as plain text, whatever else the clipboard holds
            self.insertPlainText(source.text())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()

    def focusInEvent(self, event: QFocusEvent) -> None:
        super().focusInEvent(event)
        self.focus_changed.emit(True)

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        self.focus_changed.emit(event.reason() == Qt.FocusReason.PopupFocusReason)

    def _rows(self) -> int:
        return max(1, int(self.document().size().height()))  # QPlainTextEdit measures its document in lines

    def _fit(self) -> None:
        line = self.fontMetrics().lineSpacing()
        rows = self._rows()
        self.setFixedHeight(max(_LINE, line * min(rows, MAX_LINES) + 4))
        policy = Qt.ScrollBarPolicy
        self.setVerticalScrollBarPolicy(policy.ScrollBarAsNeeded if rows > MAX_LINES else policy.ScrollBarAlwaysOff)


class SendButton(QPushButton):
    """A disc of 32: an arrow on fire, or a square on ink while there is something to stop."""

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._theme, self._stop = theme, False
        self.setFixedSize(32, 32)
        self.setAutoDefault(False)
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.set_stop(False)
        theme.changed.connect(self.update)

    def set_stop(self, stop: bool) -> None:
        """Show stop instead of send."""
        self._stop = stop
        self.setAccessibleName("Stop" if stop else "Send")
        self.setToolTip("Stop (Esc)" if stop else "Send (Enter)")
        self.update()

    def sizeHint(self) -> QSize:
        return QSize(32, 32)

    def paintEvent(self, _event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(self._disc()))
        painter.drawEllipse(QPointF(16, 16), 16, 16)
        tokens = self._theme.tokens
        if self._stop:
            painter.setBrush(QColor(tokens.base))
            painter.drawRoundedRect(QRectF(11, 11, 10, 10), 2, 2)
        else:
            arrow = icon_pixmap(
                "send", tokens.on_fire if self.isEnabled() else tokens.ink2, 16, self.devicePixelRatioF()
            )
            painter.drawPixmap(QPointF(8, 8), arrow)

    def _disc(self) -> str:
        tokens = self._theme.tokens
        if self._stop:
            return tokens.ink2 if self.underMouse() else tokens.ink
        if not self.isEnabled():
            return tokens.track
        if self.isDown():
            return tokens.fire_pressed
        return tokens.fire_hover if self.underMouse() else tokens.fire


class _Waiting(QFrame):
    """One line: the message that is sent next, and a button that takes it back."""

    closed = Signal()

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self.setObjectName("waiting")
        row = QHBoxLayout(self)
        row.setContentsMargins(12, 3, 4, 3)
        row.setSpacing(8)
        self._when = text_label(ink="ink3", pixels=12)
        self._message = ElidedLabel(ink="ink2", pixels=13)
        close = IconButton(theme, "close", "Take the message back", size=26, icon_size=16)
        close.clicked.connect(self.closed)
        row.addWidget(self._message, 1)
        row.addStretch(0)
        row.addWidget(self._when)
        row.addWidget(close)

    def show_message(self, text: str, when: str) -> None:
        """Show this message, or nothing."""
        self._message.set_whole(" ".join(text.split()))
        self._when.setText(when)
        self.setVisible(bool(text))
        if text:
            announce(self, when)

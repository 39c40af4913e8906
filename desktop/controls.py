"""Small controls that more than one part of the window uses: icon buttons, labels that elide, notices, embers.

Each paints or styles itself from the theme and follows it. Knows nothing of chats or models. GUI thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from PySide6.QtCore import QObject, QPointF, QSize, Qt, QTimer, Signal
from PySide6.QtGui import (
    QAccessible,
    QAccessibleAnnouncementEvent,
    QColor,
    QFont,
    QPainter,
    QPaintEvent,
    QResizeEvent,
)
from PySide6.QtWidgets import (
    QFrame,
    QHBoxLayout,
    QLabel,
    QPushButton,
    QSizePolicy,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from desktop.icons import icon, icon_pixmap, mark_pixmap
from desktop.theme import Theme, font

NoticeKind = Literal["warn", "err", "info"]


class IconButton(QToolButton):
    """A square button with one icon. Its accessible name is the tooltip without the shortcut."""

    def __init__(
        self, theme: Theme, name: str, text: str, *, size: int = 32, icon_size: int = 18, shortcut: str = ""
    ) -> None:
        super().__init__()
        self._theme = theme
        self._name = name
        self.setProperty("kind", "icon")
        self.setFixedSize(size, size)
        self.setIconSize(QSize(icon_size, icon_size))
        self.setAccessibleName(text)
        self.setToolTip(f"{text} ({shortcut})" if shortcut else text)
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        theme.changed.connect(self._redraw)
        self._redraw()

    def confirm(self) -> None:
        """Show a green check for a moment, as a copy button does."""
        self._show("check", self._theme.tokens.ok)
        QTimer.singleShot(1500, self, self._redraw)

    def _redraw(self) -> None:
        self._show(self._name, self._theme.tokens.ink2)

    def _show(self, name: str, colour: str) -> None:
        self.setIcon(icon(name, colour, self.iconSize().width()))


class IconLabel(QLabel):
    """An icon that is no button, in one of the theme's colours."""

    def __init__(self, theme: Theme, name: str, token: str, size: int) -> None:
        super().__init__()
        self._theme, self._name, self._token, self._size = theme, name, token, size
        self.setFixedSize(size, size)
        theme.changed.connect(self._redraw)
        self._redraw()

    def _redraw(self) -> None:
        colour = getattr(self._theme.tokens, self._token)
        self.setPixmap(icon_pixmap(self._name, colour, self._size, self.devicePixelRatioF()))


class MarkLabel(QLabel):
    """The mark. Lit when a model is loaded."""

    def __init__(self, theme: Theme, size: int) -> None:
        super().__init__()
        self._theme, self._size, self._lit = theme, size, False
        self.setFixedSize(size, size)
        self.setAccessibleName("Inglenook")
        theme.changed.connect(self._redraw)
        self._redraw()

    def set_lit(self, lit: bool) -> None:
        """Give the flame its colour, or the grey of an unlit one."""
        self._lit = lit
        self._redraw()

    def _redraw(self) -> None:
        tokens = self._theme.tokens
        flame = tokens.fire if self._lit else tokens.control
        self.setPixmap(mark_pixmap(tokens.ink, flame, self._size, self.devicePixelRatioF()))


def text_label(
    text: str = "",
    *,
    ink: str = "ink",
    pixels: int = 13,
    weight: QFont.Weight = QFont.Weight.Normal,
    wrap: bool = False,
) -> QLabel:
    """A label in one of the inks whose text can be selected and is never read as markup."""
    label = QLabel(text)
    label.setProperty("ink", ink)
    label.setFont(font(pixels, weight))
    label.setTextFormat(Qt.TextFormat.PlainText)
    label.setWordWrap(wrap)
    label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
    label.setFocusPolicy(Qt.FocusPolicy.NoFocus)
    return label


class ElidedLabel(QLabel):
    """One line that ends in "…" where there is no room; the whole text is the tooltip then."""

    def __init__(self, *, ink: str, pixels: int = 13, weight: QFont.Weight = QFont.Weight.Normal) -> None:
        super().__init__()
        self._whole = ""
        self.setProperty("ink", ink)
        self.setFont(font(pixels, weight))
        self.setTextFormat(Qt.TextFormat.PlainText)
        self.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Preferred)

    def set_whole(self, text: str) -> None:
        """Show this text, as much of it as fits."""
        self._whole = text
        self.setAccessibleName(text)
        self.updateGeometry()
        self._elide()

    def sizeHint(self) -> QSize:
        return QSize(self.fontMetrics().horizontalAdvance(self._whole) + 2, super().sizeHint().height())

    def minimumSizeHint(self) -> QSize:
        return QSize(0, super().minimumSizeHint().height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._elide()

    def _elide(self) -> None:
        shown = self.fontMetrics().elidedText(self._whole, Qt.TextElideMode.ElideRight, max(self.width(), 1))
        self.setText(shown)
        self.setToolTip("" if shown == self._whole else self._whole)


class Notice(QFrame):
    """A tinted box with an icon, a title, a line below it, and buttons. Announced when it appears."""

    closed = Signal()

    def __init__(self, theme: Theme, kind: NoticeKind, title: str, text: str = "", *, closable: bool = False) -> None:
        super().__init__()
        self.setObjectName("notice")
        self.setProperty("kind", kind)
        self.setAccessibleName(f"{title} {text}".strip())
        row = QHBoxLayout(self)
        row.setContentsMargins(16, 13, 12, 13)
        row.setSpacing(12)
        row.addWidget(IconLabel(theme, kind, kind, 20), 0, Qt.AlignmentFlag.AlignTop)
        column = QVBoxLayout()
        column.setSpacing(4)
        column.addWidget(text_label(title, pixels=14, weight=QFont.Weight.DemiBold, wrap=True))
        if text:
            column.addWidget(text_label(text, wrap=True))
        self._buttons = QHBoxLayout()
        self._buttons.setSpacing(8)
        self._buttons.addStretch(1)
        column.addLayout(self._buttons)
        row.addLayout(column, 1)
        if closable:
            close = IconButton(theme, "close", "Close this notice", size=24, icon_size=16)
            close.clicked.connect(self.closed)
            row.addWidget(close, 0, Qt.AlignmentFlag.AlignTop)
        announce(self, f"{title} {text}".strip())

    def add_button(self, text: str, clicked: Callable[[], object], *, kind: str = "secondary") -> None:
        """Add a button after the ones that are there."""
        button = push_button(text, kind)
        button.clicked.connect(lambda: clicked())
        if self._buttons.count() == 1:
            self._buttons.setContentsMargins(0, 6, 0, 0)
        self._buttons.insertWidget(self._buttons.count() - 1, button)


def push_button(text: str, kind: str) -> QPushButton:
    """A button of one of the style sheet's kinds: primary, secondary, quiet."""
    button = QPushButton(text)
    button.setProperty("kind", kind)
    button.setFont(font(13, QFont.Weight.Medium))
    button.setAutoDefault(False)
    button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
    return button


class Pulse(QObject):
    """The one clock of everything that glows: a phase from 0 to 1 in 1.2 s, running only while someone listens."""

    ticked = Signal(float)

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._step = 0
        self._timer = QTimer(self)
        self._timer.setInterval(100)
        self._timer.timeout.connect(self._tick)

    def run(self, running: bool) -> None:
        """Start or stop the clock."""
        if running:
            self._timer.start()
        else:
            self._timer.stop()

    def _tick(self) -> None:
        self._step = (self._step + 1) % 12
        self.ticked.emit(self._step / 12)


def glow(phase: float) -> float:
    """Opacity of an ember at a phase: 1, down to 0.3, back to 1."""
    return 0.3 + 0.7 * abs(2 * (phase % 1.0) - 1)


class Embers(QWidget):
    """Three dots that glow one after the other: work is running. The words beside them say which."""

    def __init__(self, theme: Theme, pulse: Pulse) -> None:
        super().__init__()
        self._theme, self._phase = theme, 0.0
        self.setFixedSize(26, 28)
        pulse.ticked.connect(self._on_tick)

    def _on_tick(self, phase: float) -> None:
        self._phase = phase
        if self.isVisible():
            self.update()

    def paintEvent(self, _event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(self._theme.tokens.ember))
        for index in range(3):
            painter.setOpacity(glow(self._phase - index / 4))
            painter.drawEllipse(QPointF(9 + 7 * index, self.height() / 2), 2.2, 2.2)


def announce(widget: QWidget, text: str) -> None:
    """Have a screen reader say this, if one listens."""
    QAccessible.updateAccessibility(QAccessibleAnnouncementEvent(widget, text))


def repolish(widget: QWidget, name: str, value: object) -> None:
    """Set a property that the style sheet looks at. Qt does not look again by itself."""
    if widget.property(name) != value:
        widget.setProperty(name, value)
        widget.style().unpolish(widget)
        widget.style().polish(widget)
        widget.update()

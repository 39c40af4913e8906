"""The ring around what has the keyboard's focus: 2 px ember, drawn over everything, and only for keyboard focus.

A style sheet knows neither an outline outside a box nor whether the focus came by key. One child of the window follows
the focused widget instead. Text inputs colour their own border and get no ring. GUI thread.
"""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject, QPoint, QRect, Qt
from PySide6.QtGui import QColor, QFocusEvent, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QApplication, QPlainTextEdit, QPushButton, QScrollArea, QWidget

from desktop.theme import Theme

_BY_KEY = (Qt.FocusReason.TabFocusReason, Qt.FocusReason.BacktabFocusReason, Qt.FocusReason.ShortcutFocusReason)
_GAP = 4
_FOLLOWED = (QEvent.Type.Move, QEvent.Type.Resize, QEvent.Type.LayoutRequest)


class FocusRing(QWidget):
    """Lies over the window, lets every click through, and paints around the focused widget."""

    def __init__(self, window: QWidget, theme: Theme) -> None:
        super().__init__(window)
        self._theme = theme
        self._target: QWidget | None = None
        self.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.hide()
        theme.changed.connect(self.update)
        QApplication.instance().installEventFilter(self)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        kind = event.type()
        if kind == QEvent.Type.FocusIn and isinstance(watched, QWidget) and isinstance(event, QFocusEvent):
            self._focus(watched, event.reason())
        elif watched is self._target:
            if kind in (QEvent.Type.FocusOut, QEvent.Type.Hide, QEvent.Type.DeferredDelete):
                self._focus(None, Qt.FocusReason.OtherFocusReason)
        elif kind in _FOLLOWED and self._target is not None and self._contains(watched):
            self._follow()
        return False

    def paintEvent(self, _event: QPaintEvent) -> None:
        if self._target is None:
            return
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(QPen(QColor(self._theme.tokens.ember), 2))
        round_one = isinstance(self._target, QPushButton) and self._target.width() == self._target.height()
        radius = self.height() / 2 - 1 if round_one else 11.0
        painter.drawRoundedRect(self.rect().adjusted(1, 1, -1, -1), radius, radius)

    def _focus(self, widget: QWidget | None, reason: Qt.FocusReason) -> None:
        wanted = widget is not None and reason in _BY_KEY and not isinstance(widget, QPlainTextEdit)
        self._target = widget if wanted and widget is not None and self.parentWidget().isAncestorOf(widget) else None
        self.setVisible(self._target is not None)
        self._follow()

    def _contains(self, watched: QObject) -> bool:
        return isinstance(watched, QWidget) and self._target is not None and watched.isAncestorOf(self._target)

    def _follow(self) -> None:
        if self._target is None:
            return
        window = self.parentWidget()
        rect = QRect(self._target.mapTo(window, QPoint(0, 0)), self._target.size())
        rect = rect.adjusted(-_GAP, -_GAP, _GAP, _GAP)
        area = self._target.parentWidget()
        while area is not None and not isinstance(area, QScrollArea):
            area = area.parentWidget()
        if area is not None:
            rect &= QRect(area.mapTo(window, QPoint(0, 0)), area.size())
        self.setGeometry(rect)
        self.raise_()
        self.update()

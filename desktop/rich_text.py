"""Text in the transcript: read-only, selectable, as tall as its content, with the boxes of code painted under it.

Owns geometry and painting of the Decorations that the Markdown writer noted. Opens a link only when a person clicks
it, and never fetches anything. GUI thread.
"""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QPointF, QRectF, QSize, Qt, QUrl, Signal
from PySide6.QtGui import (
    QColor,
    QContextMenuEvent,
    QDesktopServices,
    QGuiApplication,
    QPainter,
    QPaintEvent,
    QPen,
    QResizeEvent,
    QTextCursor,
    QTextLayout,
    QTextOption,
    QWheelEvent,
)
from PySide6.QtWidgets import QFrame, QMenu, QPushButton, QTextBrowser

from desktop.controls import Pulse, glow, push_button
from desktop.icons import icon
from desktop.markdown import MarkdownStream
from desktop.markdown_writer import CODE_PADDING, INDENT, DocumentStyle, Mark, Panel
from desktop.theme import Theme, Tokens, font

_OPENED = ("http", "https", "mailto")


class SelectableText(QTextBrowser):
    """Read-only text that grows with its content and leaves scrolling to what it stands in."""

    copy_all = Signal()  # "Copy answer" or "Copy message" was chosen

    def __init__(self, copy_words: str) -> None:
        super().__init__()
        self._copy_words = copy_words
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setOpenLinks(False)
        self.setTabChangesFocus(True)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setWordWrapMode(QTextOption.WrapMode.WrapAtWordBoundaryOrAnywhere)
        self.setTextInteractionFlags(
            Qt.TextInteractionFlag.TextBrowserInteraction | Qt.TextInteractionFlag.TextSelectableByKeyboard
        )
        self.setFont(font(15))
        self.document().setDocumentMargin(0)
        self.document().setUndoRedoEnabled(False)
        self.document().documentLayout().documentSizeChanged.connect(self._fit)
        self.anchorClicked.connect(_open_link)
        self._fit()

    def loadResource(self, _kind: int, _name: QUrl | str) -> object:
        """Nothing is loaded, neither from the disk nor from the network."""
        return None

    def wheelEvent(self, event: QWheelEvent) -> None:
        event.ignore()

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        menu = QMenu(self)
        address = self.anchorAt(event.pos())
        if address:
            menu.addAction("Copy link", lambda: QGuiApplication.clipboard().setText(address))
        menu.addAction("Copy", self.copy).setEnabled(self.textCursor().hasSelection())
        menu.addAction(self._copy_words, self.copy_all.emit)
        menu.addSeparator()
        menu.addAction("Select all", self.selectAll)
        menu.exec(event.globalPos())
        menu.deleteLater()

    def sizeHint(self) -> QSize:
        return QSize(self.width(), self.height())

    def _fit(self) -> None:
        height = max(round(self.document().size().height() + 0.49), 1)
        if height != self.height():
            self.setFixedHeight(height)


class AnswerText(SelectableText):
    """An answer's Markdown as it streams in, with code panels, their copy buttons, and the dot at the end."""

    def __init__(self, theme: Theme, pulse: Pulse) -> None:
        super().__init__("Copy answer")
        self._theme = theme
        self._streaming, self._phase = False, 0.0
        self._panel_buttons: list[QPushButton] = []
        self._rects: _Rects | None = None
        self.setAccessibleName("Answer")
        self.stream = MarkdownStream(self.document(), DocumentStyle(tokens=theme.tokens))
        self.document().setIndentWidth(INDENT)
        self.document().documentLayout().documentSizeChanged.connect(self._place_buttons)
        theme.changed.connect(self._restyle)
        pulse.ticked.connect(self._on_tick)

    def append_markdown(self, text: str) -> None:
        """Write more of the answer."""
        self.stream.append(text)
        self._refresh()

    def set_streaming(self, streaming: bool) -> None:
        """Show or hide the ember dot behind the last character."""
        self._streaming = streaming
        self._place_buttons()
        self.viewport().update()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._refresh()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self.viewport())
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        self._paint_boxes(painter, QRectF(event.rect()))
        if self._streaming and self.stream.source:
            self._paint_dot(painter)
        painter.end()
        super().paintEvent(event)

    def _paint_boxes(self, painter: QPainter, clip: QRectF) -> None:
        tokens, rects = self._theme.tokens, self._geometry()
        painter.setPen(QColor(tokens.line))
        painter.setBrush(QColor(tokens.sunken))
        for rect in rects.panels:
            if rect.intersects(clip):
                painter.drawRoundedRect(rect.adjusted(0.5, 0.5, -0.5, -0.5), 12, 12)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(tokens.track if self._theme.is_dark else tokens.hover))
        for rect in rects.spans:
            if rect.intersects(clip):
                painter.drawRoundedRect(rect, 5, 5)
        painter.setBrush(QColor(tokens.edge))
        for rect in rects.bars:
            if rect.intersects(clip):
                painter.drawRoundedRect(rect, 1, 1)
        for centre, mark in rects.marks:
            if clip.contains(centre):
                paint_mark(painter, centre, mark, tokens)

    def _paint_dot(self, painter: QPainter) -> None:
        end = QTextCursor(self.document())
        end.movePosition(QTextCursor.MoveOperation.End)
        caret = self.cursorRect(end)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(self._theme.tokens.ember))
        painter.setOpacity(glow(self._phase))
        x = min(caret.right() + 8, self.viewport().width() - 6)
        painter.drawEllipse(QPointF(x, caret.bottom() - 8), 4.5, 4.5)
        painter.setOpacity(1)

    def _geometry(self) -> _Rects:
        if self._rects is None:
            self._rects = _Rects(self)
        return self._rects

    def _refresh(self) -> None:
        self._rects = None
        self._place_buttons()
        self.viewport().update()

    def _place_buttons(self) -> None:
        self._rects = None
        panels = self.stream.decorations.panels
        while len(self._panel_buttons) > len(panels):
            self._panel_buttons.pop().deleteLater()
        while len(self._panel_buttons) < len(panels):
            self._panel_buttons.append(self._copy_button(len(self._panel_buttons)))
        for button, rect in zip(self._panel_buttons, self._geometry().panels, strict=True):
            button.move(int(rect.right()) - button.width() - 6, int(rect.top()) + 5)

    def _copy_button(self, index: int) -> QPushButton:
        button = push_button("Copy", "quiet")
        button.setParent(self.viewport())
        button.setIcon(icon("copy", self._theme.tokens.ink2, 16))
        button.setAccessibleName("Copy code")
        button.setCursor(Qt.CursorShape.ArrowCursor)
        button.clicked.connect(lambda: QGuiApplication.clipboard().setText(self.stream.decorations.panels[index].code))
        button.adjustSize()
        button.show()
        return button

    def _on_tick(self, phase: float) -> None:
        if self._streaming:
            self._phase = phase
            self.viewport().update()

    def _restyle(self) -> None:
        self.stream.restyle(DocumentStyle(tokens=self._theme.tokens))
        for button in self._panel_buttons:
            button.setIcon(icon("copy", self._theme.tokens.ink2, 16))
        self._refresh()


class _Rects:
    """Where the boxes of one layout lie. Computed once per layout: in every paint it would be the dearest part."""

    def __init__(self, view: AnswerText) -> None:
        self._view = view
        decorations = view.stream.decorations
        width = view.viewport().width()
        self.panels = [self._panel(panel, width) for panel in decorations.panels]
        self.spans = [rect for start, end in decorations.spans for rect in self._span(start, end)]
        self.bars = [self._quote(start, end) for start, end in decorations.quotes]
        self.bars += [self._rule(position, width) for position in decorations.rules]
        self.marks = [(self._mark(position), mark) for position, mark in decorations.marks]

    def _block(self, position: int) -> QRectF:
        document = self._view.document()
        return document.documentLayout().blockBoundingRect(document.findBlock(position))

    def _panel(self, panel: Panel, width: int) -> QRectF:
        top, last = self._block(panel.start), self._block(panel.end)
        left = top.left() - CODE_PADDING if top.left() > CODE_PADDING else 0.0
        height = last.bottom() - top.top() + 2 * CODE_PADDING - 6
        return QRectF(left, top.top() - CODE_PADDING + 4, width - left, height)

    def _quote(self, start: int, end: int) -> QRectF:
        top, last = self._block(start), self._block(end)
        return QRectF(0, top.top(), 3, last.bottom() - top.top())

    def _rule(self, position: int, width: int) -> QRectF:
        rect = self._block(position)
        return QRectF(0, rect.center().y(), width, 1)

    def _mark(self, position: int) -> QPointF:
        line = self._view.document().findBlock(position).layout().lineAt(0)
        corner = self._block(position).topLeft()
        return QPointF(line.x() - 12, corner.y() + line.y() + line.ascent() - 5)

    def _span(self, start: int, end: int) -> list[QRectF]:
        block = self._view.document().findBlock(start)
        corner = self._block(start).topLeft()
        layout: QTextLayout = block.layout()
        result: list[QRectF] = []
        for number in range(layout.lineCount()):
            line = layout.lineAt(number)
            first = max(start - block.position(), line.textStart())
            last = min(end - block.position(), line.textStart() + line.textLength())
            if first < last:
                left, right = _x(line, first), _x(line, last)
                baseline = corner.y() + line.y() + line.ascent()
                result.append(QRectF(max(corner.x() + left - 4, 0), baseline - 15, right - left + 4, 20.5))
        return result


def paint_mark(painter: QPainter, centre: QPointF, mark: Mark, tokens: Tokens) -> None:
    """The mark of a list item: a disc, a ring, or the box of a task."""
    painter.save()
    painter.setPen(QPen(QColor(tokens.ink2), 1.4))
    painter.setBrush(QColor(tokens.ink2) if mark == "disc" else Qt.BrushStyle.NoBrush)
    if mark in ("disc", "ring"):
        painter.drawEllipse(centre, 2, 2)
    else:
        painter.drawRoundedRect(QRectF(centre.x() - 7, centre.y() - 6, 12, 12), 3, 3)
        if mark == "done":
            tick = [centre + QPointF(x, y) for x, y in ((-4, 0), (-2, 2.5), (2.5, -2.5))]
            painter.drawPolyline(tick)
    painter.restore()


def _x(line: object, position: int) -> float:
    x = line.cursorToX(position)  # type: ignore[attr-defined]  # PySide gives (x, position) in some versions
    return x[0] if isinstance(x, tuple) else x


def _open_link(url: QUrl, opener: Callable[[QUrl], bool] = QDesktopServices.openUrl) -> None:
    if url.scheme().lower() in _OPENED:
        opener(url)

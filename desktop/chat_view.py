"""The transcript: turns under each other in a column of reading width, following the end while a person is there.

Knows turns, not the engine. GUI thread.
"""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QGuiApplication, QResizeEvent
from PySide6.QtWidgets import QFrame, QScrollArea, QVBoxLayout, QWidget

from desktop.controls import Pulse
from desktop.theme import Theme
from desktop.turns import GUTTER, AnswerTurn, QuestionTurn
from engine.request import Delta

TEXT_WIDTH = 720
SCROLL_BAR = 12
MARGIN = 24


class ChatView(QScrollArea):
    """All turns of one chat."""

    again_wanted = Signal()  # "Answer again" was chosen
    new_chat_wanted = Signal()

    def __init__(self, theme: Theme, pulse: Pulse) -> None:
        super().__init__()
        self._theme, self._pulse = theme, pulse
        self._open: AnswerTurn | None = None
        self._follows = True
        self.setObjectName("transcript")
        self.setAccessibleName("Chat")
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setWidgetResizable(True)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOn)  # so that the text's axis never moves
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self._column = _Column()
        self.setWidget(self._column)
        bar = self.verticalScrollBar()
        bar.setSingleStep(24)
        bar.setEnabled(False)
        bar.valueChanged.connect(self._on_scrolled)
        bar.rangeChanged.connect(self._on_range)

    def ask(self, question: str) -> None:
        """Add a question and the place of its answer, and go to the end."""
        self._column.add(QuestionTurn(question), gap=22)
        self._open_answer()

    def ask_again(self) -> None:
        """Take the last answer away and make place for another one."""
        self._column.remove_last()
        self._open_answer()

    def grow(self, text: str, tokens: int) -> None:
        """Write more of the open answer."""
        if self._open is not None:
            self._open.grow(text, tokens)

    def end(self, last: Delta) -> None:
        """Close the open answer."""
        if self._open is None:
            return
        actions: list[tuple[str, Callable[[], object]]] = []
        if last.finish_reason == "error":
            actions = [("Answer again", self.again_wanted.emit)]
        elif last.finish_reason == "length":
            actions = [("Start a new chat", self.new_chat_wanted.emit)]
        self._open.end(last, actions)
        self._open = None
        self._pulse.run(False)

    def clear(self) -> None:
        """Remove all turns."""
        self._open = None
        self._pulse.run(False)
        self._column.clear()

    def copy_last_answer(self) -> bool:
        """Put the last answer on the clipboard; False where there is none."""
        for turn in reversed(self._column.turns):
            if isinstance(turn, AnswerTurn) and turn.source:
                turn.copy()
                return True
        return False

    def copy_all(self) -> None:
        """Put the whole chat on the clipboard."""
        parts = [turn.source for turn in self._column.turns if isinstance(turn, AnswerTurn | QuestionTurn)]
        QGuiApplication.clipboard().setText("\n\n".join(part for part in parts if part))

    def scroll_page(self, direction: int) -> None:
        """Move by a page: -1 up, 1 down."""
        bar = self.verticalScrollBar()
        bar.setValue(bar.value() + direction * (bar.pageStep() - 48))

    def _open_answer(self) -> None:
        self._open = AnswerTurn(self._theme, self._pulse)
        self._column.add(self._open, gap=16)
        self._follows = True
        self._pulse.run(True)

    def _on_scrolled(self, value: int) -> None:
        self._follows = value >= self.verticalScrollBar().maximum() - 4

    def _on_range(self, _low: int, high: int) -> None:
        self.verticalScrollBar().setEnabled(high > 0)
        if self._follows:
            self.verticalScrollBar().setValue(high)


class _Column(QWidget):
    """The turns, centred and never wider than reading width."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("column")
        self.turns: list[QWidget] = []
        self._layout = QVBoxLayout(self)
        self._layout.setSpacing(0)
        self._layout.addStretch(1)

    def add(self, turn: QWidget, *, gap: int) -> None:
        self.turns.append(turn)
        layout = turn.layout()
        assert layout is not None
        layout.setContentsMargins(0, gap if len(self.turns) > 1 else 0, 0, 0)
        self._layout.insertWidget(self._layout.count() - 1, turn)

    def remove_last(self) -> None:
        turn = self.turns.pop()
        turn.hide()
        self._layout.removeWidget(turn)
        turn.deleteLater()

    def clear(self) -> None:
        while self.turns:
            self.remove_last()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        side = max(MARGIN, (self.width() - TEXT_WIDTH) // 2) - GUTTER
        self._layout.setContentsMargins(side, 20, side, 20)

"""What stands over the composer while a chat is empty: the model on its way, ready, or why it can't be used.

Knows sentences, not how a load goes. GUI thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QFont
from PySide6.QtWidgets import QProgressBar, QVBoxLayout, QWidget

from desktop import words
from desktop.controls import MarkLabel, announce, push_button, text_label
from desktop.theme import DISPLAY, Theme, font

if TYPE_CHECKING:
    from engine.loading import LoadedModel, LoadProgress

_STEPS = 1000  # of the progress bar


class StartPage(QWidget):
    """Mark, headline, one line, and below it progress or the way out."""

    retry_wanted = Signal()

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._announced = 0
        self._mark = MarkLabel(theme, 36)
        self._headline = text_label(wrap=True)
        self._headline.setFont(font(28, QFont.Weight.DemiBold, family=DISPLAY))
        self._line = text_label(ink="ink2", pixels=15, wrap=True)
        self._bar = QProgressBar()
        self._bar.setObjectName("loading")
        self._bar.setTextVisible(False)
        self._bar.setRange(0, _STEPS)
        self._bar.setFixedHeight(4)
        self._retry = push_button("Try again", "primary")
        self._retry.clicked.connect(self.retry_wanted)
        self._below = QWidget()  # what stands there only at times, with the room above it
        below = QVBoxLayout(self._below)
        below.setContentsMargins(0, 16, 0, 0)
        below.addWidget(self._bar)
        below.addWidget(self._retry, 0, Qt.AlignmentFlag.AlignLeft)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 22)
        column.setSpacing(0)
        column.addWidget(self._mark)
        column.addSpacing(17)
        column.addWidget(self._headline)
        column.addSpacing(7)
        column.addWidget(self._line)
        column.addWidget(self._below)
        for label in (self._headline, self._line):
            label.setAlignment(Qt.AlignmentFlag.AlignLeft)

    def show_loading(self, name: str, progress: LoadProgress | None) -> None:
        """How far the model is."""
        self._mark.set_lit(False)
        self._show(name or "Inglenook", words.loading(name or "the model", progress), bar=True)
        share = progress.done_bytes / progress.total_bytes if progress and progress.total_bytes else 0.0
        self._bar.setValue(round(share * _STEPS))
        self._bar.setAccessibleName(self._line.text())
        if int(share * 4) > self._announced:  # said at every quarter
            self._announced = int(share * 4)
            announce(self, self._line.text())

    def show_ready(self, model: LoadedModel) -> None:
        """The model waits for the first message."""
        self._mark.set_lit(True)
        self._show(f"{model.name} is ready.", words.ready_line(model))
        announce(self, self._headline.text())

    def show_failed(self, message: str) -> None:
        """Why there is no model, and the way out."""
        self._announced = 0
        self._mark.set_lit(False)
        headline, rest = words.headline_and_rest(message, "The model can't be loaded.")
        self._show(headline, rest, retry=True)
        announce(self, message)

    def _show(self, headline: str, line: str, *, bar: bool = False, retry: bool = False) -> None:
        self._headline.setText(headline)
        self._line.setText(line)
        self._line.setVisible(bool(line))
        self._bar.setVisible(bar)
        self._retry.setVisible(retry)
        self._below.setVisible(bar or retry)

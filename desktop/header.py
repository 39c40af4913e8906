"""The bar at the top: the mark, the model with its quantization and adapter, and the way to a new chat. GUI thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QFont
from PySide6.QtWidgets import QHBoxLayout, QWidget

from desktop.controls import ElidedLabel, IconButton, MarkLabel
from desktop.theme import Theme

if TYPE_CHECKING:
    from engine.loading import LoadedModel

HEIGHT = 52


class Header(QWidget):
    """Says what answers here."""

    new_chat_wanted = Signal()

    def __init__(self, theme: Theme, shortcut: str) -> None:
        super().__init__()
        self.setObjectName("header")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.setFixedHeight(HEIGHT)
        self._mark = MarkLabel(theme, 24)
        self._name = ElidedLabel(ink="ink", pixels=14, weight=QFont.Weight.DemiBold)
        self._details = ElidedLabel(ink="ink3", pixels=12)
        self._new_chat = IconButton(theme, "new_chat", "New chat", shortcut=shortcut)
        self._new_chat.clicked.connect(self.new_chat_wanted)
        row = QHBoxLayout(self)
        row.setContentsMargins(20, 0, 14, 0)
        row.setSpacing(10)
        row.addWidget(self._mark)
        row.addWidget(self._name)
        row.addWidget(self._details, 1)
        row.addStretch(0)
        row.addWidget(self._new_chat)

    def show_name(self, name: str) -> None:
        """A model that is not loaded yet, or the app's own name while none is known."""
        self._mark.set_lit(False)
        self._name.set_whole(name)
        self._details.set_whole("")

    def show_model(self, model: LoadedModel) -> None:
        """The model that answers."""
        self._mark.set_lit(True)
        self._name.set_whole(model.name)
        self._details.set_whole(" · ".join(part for part in (model.quantization, model.adapter) if part))

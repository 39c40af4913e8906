"""Streaming Markdown: finished top-level blocks are written once, and only the open end is written again.

Owns the split between what is finished and what may still change. Raw HTML is off, so that whatever a model writes is
text; images are never fetched, their address becomes a link. Knows no widget; desktop/markdown_writer.py puts the
tokens into the document. GUI thread.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from markdown_it import MarkdownIt
from markdown_it.token import Token
from PySide6.QtGui import QTextBlockFormat, QTextCharFormat, QTextCursor, QTextDocument

from desktop.markdown_writer import Decorations, DocumentStyle, Writer

_PARSER = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
_LONE_RETURN = re.compile(r"\r(?!\Z)")  # at the very end its line feed may still come


@dataclass(slots=True)
class MarkdownStream:
    """One answer's Markdown and the document that shows it."""

    document: QTextDocument
    style: DocumentStyle
    source: str = ""
    decorations: Decorations = field(default_factory=Decorations)
    _tail: str = ""
    _finished_at: int = 0  # document position where the open end begins
    _fresh: bool = True  # nothing is written before it
    _last_format: QTextBlockFormat = field(default_factory=QTextBlockFormat)  # of the block that position is in
    _last_chars: QTextCharFormat = field(default_factory=QTextCharFormat)
    _finished: Decorations = field(default_factory=Decorations)
    _references: dict[str, object] = field(default_factory=dict)  # link definitions outlive the block they stand in

    def append(self, text: str) -> None:
        """Add text to the end and write what it changes."""
        self.source += text
        self._tail = _LONE_RETURN.sub("\n", (self._tail + text).replace("\r\n", "\n"))
        cursor = QTextCursor(self.document)
        cursor.beginEditBlock()
        cursor.setPosition(self._finished_at)
        cursor.movePosition(QTextCursor.MoveOperation.End, QTextCursor.MoveMode.KeepAnchor)
        cursor.removeSelectedText()
        if cursor.block().length() == 1:  # an empty block takes the format of what joins it
            cursor.setBlockFormat(self._last_format)
            cursor.setBlockCharFormat(self._last_chars)
        self._write(cursor)
        cursor.endEditBlock()

    def restyle(self, style: DocumentStyle) -> None:
        """Write everything again with other colours or sizes."""
        self.style, self._tail = style, self.source
        self._finished_at, self._fresh = 0, True
        self._last_format, self._last_chars = QTextBlockFormat(), QTextCharFormat()
        self._finished, self._references = Decorations(), {}
        self.append("")

    def _write(self, cursor: QTextCursor) -> None:
        groups = list(_top_level(_PARSER.parse(self._tail, self._references)))
        finished = _count_finished(groups, self._tail.count("\n"))
        writer = Writer(cursor, self.style, self._finished.copy(), fresh=self._fresh)
        for index, group in enumerate(groups):
            if index == finished and index > 0:
                self._keep(cursor, writer, _first_line(group))
            writer.write(group)
        self.decorations = writer.decorations

    def _keep(self, cursor: QTextCursor, writer: Writer, next_line: int) -> None:
        self._finished_at, self._fresh = cursor.position(), writer.fresh
        self._last_format, self._last_chars = cursor.blockFormat(), cursor.blockCharFormat()
        self._finished = writer.decorations.copy()
        self._tail = "\n".join(self._tail.split("\n")[next_line:])


def _top_level(tokens: list[Token]) -> Iterator[list[Token]]:
    group: list[Token] = []
    for token in tokens:
        group.append(token)
        if token.level == 0 and token.nesting <= 0:
            yield group
            group = []


def _count_finished(groups: list[list[Token]], complete_lines: int) -> int:
    """How many blocks can't change any more: all but the last, once the line that began the last one is complete.

    A table needs two lines to be one.
    """
    if len(groups) < 2:
        return 0
    last = groups[-1][0]
    needed = 2 if last.type == "table_open" else 1
    return len(groups) - 1 if _first_line(groups[-1]) + needed <= complete_lines else 0


def _first_line(group: list[Token]) -> int:
    return group[0].map[0] if group[0].map else 0

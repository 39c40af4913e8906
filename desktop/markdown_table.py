"""Markdown tables in a QTextDocument: full width, a strong line under the heads, hairlines under the rows.

Knows cells, not Markdown: what stands in a cell is written by the function that the caller passes. GUI thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markdown_it.token import Token
from PySide6.QtCore import Qt
from PySide6.QtGui import (
    QBrush,
    QColor,
    QFont,
    QTextBlockFormat,
    QTextCharFormat,
    QTextCursor,
    QTextFrameFormat,
    QTextLength,
    QTextTable,
    QTextTableCellFormat,
    QTextTableFormat,
)

from desktop.theme import font

if TYPE_CHECKING:
    from desktop.markdown_writer import Decorations, DocumentStyle

    WriteInline = Callable[[QTextCursor, list[Token], QTextCharFormat, DocumentStyle, Decorations], None]


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell: its inline tokens, and how it stands."""

    children: list[Token]
    alignment: Qt.AlignmentFlag
    is_head: bool


def insert_table(
    cursor: QTextCursor,
    rows: list[list[Cell]],
    style: DocumentStyle,
    decorations: Decorations,
    write: WriteInline,
) -> None:
    """Insert the rows at the cursor, and leave the cursor in the empty block behind the table.

    Margins are the affair of the blocks before and behind: Qt drops those between a block and a table.
    """
    table = cursor.insertTable(len(rows), max(len(row) for row in rows), _table_format())
    for row_number, row in enumerate(rows):
        for column, cell in enumerate(row):
            _fill(table, row_number, column, cell, style, decorations, write)
    cursor.setPosition(table.lastPosition() + 1)


def _fill(
    table: QTextTable,
    row: int,
    column: int,
    cell: Cell,
    style: DocumentStyle,
    decorations: Decorations,
    write: WriteInline,
) -> None:
    place = table.cellAt(row, column)
    chars = QTextCharFormat()
    chars.setFont(font(13, QFont.Weight.DemiBold) if cell.is_head else font(style.pixels))
    chars.setForeground(QColor(style.tokens.ink2 if cell.is_head else style.tokens.ink))
    block_format = QTextBlockFormat()
    block_format.setAlignment(cell.alignment)
    block_format.setLineHeight(120, QTextBlockFormat.LineHeightTypes.ProportionalHeight.value)
    inner = place.firstCursorPosition()
    inner.setBlockFormat(block_format)
    cell_format = _cell_format(cell.is_head, style)
    cell_format.merge(chars)  # a cell's format and its first block's characters are one and the same
    place.setFormat(cell_format)
    write(inner, cell.children, chars, style, decorations)


def _table_format() -> QTextTableFormat:
    result = QTextTableFormat()
    result.setWidth(QTextLength(QTextLength.Type.PercentageLength, 100))
    result.setBorder(0)
    result.setBorderCollapse(True)
    result.setCellSpacing(0)
    result.setCellPadding(0)
    return result


def _cell_format(is_head: bool, style: DocumentStyle) -> QTextTableCellFormat:
    result = QTextTableCellFormat()
    result.setLeftPadding(6)
    result.setRightPadding(12)
    result.setTopPadding(4)
    result.setBottomPadding(7)
    result.setBottomBorder(1)
    result.setBottomBorderStyle(QTextFrameFormat.BorderStyle.BorderStyle_Solid)
    result.setBottomBorderBrush(QBrush(QColor(style.tokens.control if is_head else style.tokens.line)))
    return result

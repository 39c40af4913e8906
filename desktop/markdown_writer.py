"""From markdown-it tokens to a QTextDocument: formats, lists, tables, and notes of what has to be painted around them.

A document knows no rounded boxes, so code, quotes and rules are plain blocks here, and their positions go into the
Decorations that desktop/rich_text.py paints. Knows no widget and no source text. GUI thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from markdown_it.token import Token
from PySide6.QtCore import Qt
from PySide6.QtGui import (
    QBrush,
    QColor,
    QFont,
    QTextBlockFormat,
    QTextCharFormat,
    QTextCursor,
    QTextList,
    QTextListFormat,
)

from desktop.markdown_table import Cell, insert_table
from desktop.theme import INTERFACE, Tokens, font, mono_font

Mark = Literal["disc", "ring", "to do", "done"]

INDENT = 4  # pixels of one indent unit; lists take several
CODE_PADDING = 14
QUOTE_PADDING = 16
_HEADINGS = {"h1": 21, "h2": 18, "h3": 16, "h4": 15, "h5": 15, "h6": 15}


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentStyle:
    """How an answer looks: the colours, and the size of its text in pixels."""

    tokens: Tokens
    pixels: int = 15


@dataclass(frozen=True, slots=True)
class Panel:
    """A code block between two document positions, the first one in its language line."""

    start: int
    end: int
    code: str


@dataclass(slots=True)
class Decorations:
    """What to paint around the text, by document positions (start, end)."""

    panels: list[Panel] = field(default_factory=list)
    quotes: list[tuple[int, int]] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)  # inline code
    rules: list[int] = field(default_factory=list)
    marks: list[tuple[int, Mark]] = field(default_factory=list)  # of list items, at the start of their text

    def copy(self) -> Decorations:
        """The same notes in lists of their own."""
        return Decorations(self.panels[:], self.quotes[:], self.spans[:], self.rules[:], self.marks[:])


@dataclass(slots=True)
class _List:
    style: QTextListFormat
    units: int  # indent of its text
    mark: Mark | None = None  # what is painted before an item; None where Qt writes a number
    made: QTextList | None = None


class Writer:
    """Writes blocks at a cursor, which is always at the end of the document."""

    def __init__(self, cursor: QTextCursor, style: DocumentStyle, decorations: Decorations, *, fresh: bool) -> None:
        self._cursor = cursor
        self._style = style
        self.decorations = decorations
        self.fresh = fresh  # the document is empty: its one block waits to be used
        self._lists: list[_List] = []
        self._item_waits = False  # a list item began and has no block yet
        self._quotes: list[int] = []
        self._task: Mark | None = None  # the item that begins is a task
        self._handlers: dict[str, Callable[[Token], None]] = {
            "bullet_list_open": self._open_bullets, "ordered_list_open": self._open_numbers,
            "bullet_list_close": self._close_list, "ordered_list_close": self._close_list,
            "list_item_open": self._open_item, "list_item_close": self._close_item,
            "fence": self._code, "code_block": self._code, "hr": self._rule,
            "blockquote_open": self._open_quote, "blockquote_close": self._close_quote,
        }  # fmt: skip

    def write(self, tokens: list[Token]) -> None:
        """Write the tokens of one top-level block."""
        index = 0
        while index < len(tokens):
            token = tokens[index]
            if token.type == "table_open":
                index = self._table(tokens, index)
            elif token.type in ("paragraph_open", "heading_open"):
                self._text_block(token, tokens[index + 1])
                index += 2
            elif handler := self._handlers.get(token.type):
                handler(token)
            index += 1

    def _block(self, block_format: QTextBlockFormat, char_format: QTextCharFormat) -> None:
        if self._quotes:
            block_format.setLeftMargin(block_format.leftMargin() + QUOTE_PADDING * len(self._quotes))
        if self.fresh:
            self._cursor.setBlockFormat(block_format)
            self._cursor.setBlockCharFormat(char_format)
            self._cursor.setCharFormat(char_format)
            self.fresh = False
        else:
            self._cursor.insertBlock(block_format, char_format)
        if self._quotes:
            position = self._cursor.position()
            self._quotes = [position if start < 0 else start for start in self._quotes]
        self._enter_list(block_format)

    def _enter_list(self, block_format: QTextBlockFormat) -> None:
        if not self._lists:
            return
        innermost = self._lists[-1]
        if not self._item_waits:
            block_format.setIndent(innermost.units)
            self._cursor.setBlockFormat(block_format)
            return
        self._item_waits = False
        if (mark := self._task or innermost.mark) is not None:
            self.decorations.marks.append((self._cursor.position(), mark))
        if innermost.made is None:
            innermost.made = self._cursor.createList(innermost.style)
        else:
            innermost.made.add(self._cursor.block())

    def _block_format(self, top: float, line_height: float = 134) -> QTextBlockFormat:
        result = QTextBlockFormat()
        at_start = self._cursor.atStart()
        result.setTopMargin(0 if at_start else top)
        result.setLineHeight(line_height, QTextBlockFormat.LineHeightTypes.ProportionalHeight.value)
        return result

    def _text_block(self, opening: Token, inline: Token) -> None:
        heading = _HEADINGS.get(opening.tag)
        if heading:
            size = max(heading, self._style.pixels)
            block_format, char_format = self._block_format(18, 120), self._chars(size, QFont.Weight.DemiBold)
        else:
            in_item = bool(self._lists)
            first_of_tight = opening.hidden or (in_item and self._item_waits)
            block_format = self._block_format(5 if first_of_tight else 10)
            char_format = self._chars(self._style.pixels)
        children = inline.children or []
        self._task = _take_task_box(children) if self._item_waits else None
        self._block(block_format, char_format)
        write_inline(self._cursor, children, char_format, self._style, self.decorations)

    def _chars(self, pixels: int, weight: QFont.Weight = QFont.Weight.Normal) -> QTextCharFormat:
        result = QTextCharFormat()
        result.setFont(font(pixels, weight, family=INTERFACE))
        result.setForeground(QColor(self._style.tokens.ink))
        return result

    def _open_bullets(self, _token: Token) -> None:
        self._open_list(QTextListFormat(), 6, "ring" if self._lists else "disc")

    def _open_numbers(self, token: Token) -> None:
        style = QTextListFormat()
        style.setStyle(QTextListFormat.Style.ListDecimal)
        style.setStart(int(token.attrs.get("start", 1)))
        self._open_list(style, 7, None)

    def _open_list(self, style: QTextListFormat, width: int, mark: Mark | None) -> None:
        units = width + (self._lists[-1].units if self._lists else 0)
        style.setIndent(units)
        self._lists.append(_List(style, units, mark))

    def _close_list(self, _token: Token) -> None:
        self._lists.pop()

    def _open_item(self, _token: Token) -> None:
        self._item_waits, self._task = True, None

    def _close_item(self, _token: Token) -> None:
        if self._item_waits:  # an item without text, perhaps not yet
            self._block(self._block_format(5), self._chars(self._style.pixels))

    def _open_quote(self, _token: Token) -> None:
        self._quotes.append(-1)

    def _close_quote(self, _token: Token) -> None:
        start = self._quotes.pop()
        if start >= 0:
            self.decorations.quotes.append((start, self._cursor.position()))

    def _code(self, token: Token) -> None:
        label = token.info.split()[0] if token.info.split() else "code"
        head = self._block_format(24, 100)
        small = self._chars(12)
        small.setForeground(QColor(self._style.tokens.ink2))
        code_chars = QTextCharFormat()
        code_chars.setFont(mono_font(self._style.pixels - 2))
        code_chars.setForeground(QColor(self._style.tokens.ink))
        if self._cursor.atStart():
            head.setTopMargin(CODE_PADDING - 4)
        self._code_block(head, small, label)
        start = self._cursor.position()
        lines = token.content.removesuffix("\n").split("\n")
        for number, line in enumerate(lines):
            block_format = self._block_format(8 if number == 0 else 0, 118)
            if number == len(lines) - 1:
                block_format.setBottomMargin(CODE_PADDING + 10)
            self._code_block(block_format, code_chars, line)
        self.decorations.panels.append(Panel(start, self._cursor.position(), token.content.removesuffix("\n")))

    def _code_block(self, block_format: QTextBlockFormat, char_format: QTextCharFormat, text: str) -> None:
        block_format.setLeftMargin(CODE_PADDING)
        block_format.setRightMargin(CODE_PADDING)
        self._block(block_format, char_format)
        self._cursor.insertText(text, char_format)

    def _rule(self, _token: Token) -> None:
        self._block(self._block_format(8, 100), self._chars(8))
        self.decorations.rules.append(self._cursor.position())

    def _table(self, tokens: list[Token], index: int) -> int:
        rows: list[list[Cell]] = []
        while tokens[index].type != "table_close":
            token = tokens[index]
            if token.type == "tr_open":
                rows.append([])
            elif token.type in ("th_open", "td_open"):
                children = tokens[index + 1].children or []
                rows[-1].append(Cell(children, _alignment(token), token.type == "th_open"))
            index += 1
        self._block(QTextBlockFormat(), QTextCharFormat())
        flatten(self._cursor, top=8)
        insert_table(self._cursor, rows, self._style, self.decorations, write_inline)
        flatten(self._cursor)
        return index


def write_inline(
    cursor: QTextCursor, children: list[Token], base: QTextCharFormat, style: DocumentStyle, decorations: Decorations
) -> None:
    """Write the inline tokens of one block at the cursor. An image becomes a link to it: nothing is fetched."""
    formats = [QTextCharFormat(base)]
    for token in children:
        if token.type == "text":
            cursor.insertText(token.content, formats[-1])
        elif token.type in ("softbreak", "hardbreak"):  # models mean the line ends that they write
            cursor.insertText("\u2028", formats[-1])
        elif token.type == "code_inline":
            _inline_code(cursor, token.content, formats[-1], style, decorations)
        elif token.type == "image":
            address = str(token.attrs.get("src", ""))
            cursor.insertText(token.content or address, _link(formats[-1], address, style))
        elif token.nesting == 1:
            formats.append(_nested(token, formats[-1], style))
        elif token.nesting == -1 and len(formats) > 1:
            formats.pop()


def flatten(cursor: QTextCursor, top: float = 0) -> None:
    """Give the cursor's empty block no height worth seeing: a document must have one beside every table."""
    block_format = QTextBlockFormat()
    block_format.setTopMargin(0 if cursor.atStart() else top)
    block_format.setLineHeight(1, QTextBlockFormat.LineHeightTypes.FixedHeight.value)
    tiny = QTextCharFormat()
    tiny.setFont(font(1))
    cursor.setBlockFormat(block_format)
    cursor.setBlockCharFormat(tiny)


def _nested(token: Token, outer: QTextCharFormat, style: DocumentStyle) -> QTextCharFormat:
    result = QTextCharFormat(outer)
    if token.type == "strong_open":
        result.setFontWeight(QFont.Weight.DemiBold)
    elif token.type == "em_open":
        result.setFontItalic(True)
    elif token.type == "s_open":
        result.setFontStrikeOut(True)
    elif token.type == "link_open":
        result = _link(outer, str(token.attrs.get("href", "")), style)
    return result


def _link(outer: QTextCharFormat, address: str, style: DocumentStyle) -> QTextCharFormat:
    result = QTextCharFormat(outer)
    result.setAnchor(True)
    result.setAnchorHref(address)
    result.setToolTip(address)
    result.setForeground(QColor(style.tokens.ember))
    result.setFontUnderline(True)
    return result


def _inline_code(
    cursor: QTextCursor, text: str, outer: QTextCharFormat, style: DocumentStyle, decorations: Decorations
) -> None:
    code = QTextCharFormat(outer)
    code.setFont(mono_font(style.pixels - 2))
    code.setForeground(QBrush(outer.foreground()) if outer.isAnchor() else QColor(style.tokens.ink))
    start = cursor.position()
    if not cursor.atBlockStart():  # room for the box before and behind, as spacing of the neighbouring characters
        before = QTextCursor(cursor)
        before.movePosition(QTextCursor.MoveOperation.Left, QTextCursor.MoveMode.KeepAnchor)
        before.mergeCharFormat(_room())
    cursor.insertText(text[:-1], code)
    code.merge(_room())
    cursor.insertText(text[-1:], code)
    decorations.spans.append((start, cursor.position()))


def _room() -> QTextCharFormat:
    result = QTextCharFormat()
    result.setFontLetterSpacingType(QFont.SpacingType.AbsoluteSpacing)
    result.setFontLetterSpacing(4)
    return result


def _take_task_box(children: list[Token]) -> Mark | None:
    """What a task item's "[ ] " or "[x] " says, taken off its text."""
    if not children or children[0].type != "text":
        return None
    marks: dict[str, Mark] = {"[ ] ": "to do", "[x] ": "done"}
    mark = marks.get(children[0].content[:4].lower())
    if mark:
        children[0].content = children[0].content[4:]
    return mark


def _alignment(token: Token) -> Qt.AlignmentFlag:
    written = str(token.attrs.get("style", ""))
    if "right" in written:
        return Qt.AlignmentFlag.AlignRight
    return Qt.AlignmentFlag.AlignHCenter if "center" in written else Qt.AlignmentFlag.AlignLeft

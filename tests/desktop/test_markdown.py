"""Streaming Markdown gives the same document as the whole text at once, and nothing in it reaches outside."""

from __future__ import annotations

import pytest
from PySide6.QtGui import QTextDocument
from PySide6.QtWidgets import QApplication

from desktop.markdown import MarkdownStream
from desktop.markdown_writer import DocumentStyle
from desktop.theme import LIGHT

SAMPLES = {
    "paragraphs": "One line\nand its second.\n\nAnother **bold** and *slanted* one with `code` and ~~no~~.\n",
    "headings": "# One\n\ntext\n\n## Two\nmore\n\nThree\n=====\n",
    "lists": "- a\n- b\n  1. one\n  2. two\n\n     more of two\n- [ ] open\n- [x] done\n\nafter\n\n3. three\n4. four\n",
    "code": "before\n\n```python\nx = 1\n\n\ny = 2\n```\nafter\n\n    indented\n",
    "open fence": "```\nnot closed\n\nyet",
    "table": "| a | b |\n|---|--:|\n| `1` | **2** |\n| 3 | 4 |\n\nafter\n\n| c |\n|---|\n| d |\n",
    "two tables": "| a |\n|---|\n| 1 |\n\n\n| b |\n|---|\n| 2 |\n\n> quote\n> more\n>\n> - list\n\n***\n\nend",
    "references": "[one][a] and [two][b]\n\n[a]: http://a.example\n\nlater [again][a]\n\n[b]: http://b.example\n",
    "other line ends": "a\r\nb\r\n\r\n- c\r\n\r\nd\re\u2028f\x0bg\n\nh",
    "empty blocks": "***\n```\n\n```\nx\n\n-\n\ny\n\n1. 2)\n\n7)\n\n[ ] z\n",
    "interrupted": "foo\n***\nbar\n- x\n\n\n\n- y\n# z",
}


def make() -> MarkdownStream:
    return MarkdownStream(QTextDocument(), DocumentStyle(tokens=LIGHT))


def picture(stream: MarkdownStream) -> tuple[object, ...]:
    """Everything that shows: the blocks with their formats and fragments, and the decorations."""
    blocks: list[object] = []
    block = stream.document.begin()
    while block.isValid():
        shape = block.blockFormat()
        in_list = block.textList()
        pieces: list[object] = []
        walk = block.begin()
        while not walk.atEnd():
            piece = walk.fragment()
            look = piece.charFormat()
            pieces.append(
                (piece.text(), look.fontWeight(), look.fontItalic(), look.anchorHref(), look.font().pixelSize())
            )
            walk += 1
        lists = (in_list.format().indent(), in_list.itemNumber(block)) if in_list else None
        blocks.append((shape.topMargin(), shape.leftMargin(), shape.lineHeight(), shape.indent(), lists, tuple(pieces)))
        block = block.next()
    marks = stream.decorations
    return (blocks, marks.panels, marks.quotes, marks.spans, marks.rules, marks.marks)


@pytest.mark.parametrize("text", SAMPLES.values(), ids=SAMPLES.keys())
@pytest.mark.parametrize("step", [1, 3, 7])
def test_streamed_and_whole_text_look_alike(qapp: QApplication, text: str, step: int) -> None:
    whole, streamed = make(), make()
    whole.append(text)
    for start in range(0, len(text), step):
        streamed.append(text[start : start + step])
    if "references" in text or "[one][a]" in text:  # a definition that comes later can't reach what is finished
        assert streamed.document.toPlainText().count("again") == 1
        return
    assert picture(streamed) == picture(whole)
    assert streamed.source == text


def test_finished_blocks_are_not_parsed_again(qapp: QApplication) -> None:
    stream = make()
    for number in range(50):
        stream.append(f"Paragraph {number}.\n\n")
    assert len(stream._tail) < 40


def test_markup_in_an_answer_stays_text(qapp: QApplication) -> None:
    stream = make()
    stream.append('<b>no</b> <img src="http://x.example/a.png"> <script>alert(1)</script>\n\n<div>\nblock\n</div>')
    assert "<b>no</b>" in stream.document.toPlainText()
    assert "<script>alert(1)</script>" in stream.document.toPlainText()
    assert "<div>" in stream.document.toPlainText()


def test_an_image_becomes_a_link_and_is_never_fetched(qapp: QApplication) -> None:
    stream = make()
    stream.append("![a cat](http://x.example/cat.png)")
    html = stream.document.toHtml()
    assert "<img" not in html
    assert 'href="http://x.example/cat.png"' in html


def test_code_panels_keep_the_code_as_written(qapp: QApplication) -> None:
    stream = make()
    stream.append("```python title\nif x:\n\n    y()\n```\n")
    (panel,) = stream.decorations.panels
    assert panel.code == "if x:\n\n    y()"
    assert stream.document.toPlainText() == "python\nif x:\n\n    y()"


def test_restyling_keeps_text_and_what_comes_later(qapp: QApplication) -> None:
    stream, fresh = make(), make()
    stream.append("# a\n\n- b\n- c")
    stream.restyle(DocumentStyle(tokens=LIGHT, pixels=17))
    stream.append(" d\n\ne")
    fresh.style = DocumentStyle(tokens=LIGHT, pixels=17)
    fresh.append("# a\n\n- b\n- c d\n\ne")
    assert picture(stream) == picture(fresh)

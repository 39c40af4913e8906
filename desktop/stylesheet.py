"""The one style sheet of the window, generated from the tokens. Set at start and when the theme changes.

Owns boxes: buttons, notices, the composer's frame, scroll bars. Text colours of labels follow their `ink` property.
Knows no widget by reference, only object names and properties. GUI thread.
"""

from __future__ import annotations

from desktop.theme import Tokens


def stylesheet(tokens: Tokens) -> str:
    """Qt style sheet text for these tokens."""
    return "".join(part(tokens) for part in (_labels, _buttons, _frames, _scroll_bars, _rest))


def _labels(t: Tokens) -> str:
    inks = "".join(f'QLabel[ink="{name}"] {{ color: {getattr(t, name)}; }}' for name in ("ink", "ink2", "ink3"))
    return f"QLabel {{ background: transparent; color: {t.ink}; }} {inks}"


def _buttons(t: Tokens) -> str:
    plain = "border-radius: 8px; padding: 0 14px; min-height: 30px; font-weight: 500;"
    return f"""
    QPushButton[kind="primary"] {{ {plain} color: {t.on_fire}; background: {t.fire}; border: 1px solid {t.fire};
        font-weight: 600; }}
    QPushButton[kind="primary"]:hover {{ background: {t.fire_hover}; border-color: {t.fire_hover}; }}
    QPushButton[kind="primary"]:pressed {{ background: {t.fire_pressed}; border-color: {t.fire_pressed}; }}
    QPushButton[kind="primary"]:disabled {{ background: {t.track}; border-color: {t.track}; color: {t.ink3}; }}
    QPushButton[kind="secondary"] {{ {plain} color: {t.ink}; background: {t.raised}; border: 1px solid {t.edge}; }}
    QPushButton[kind="secondary"]:hover {{ background: {t.hover}; }}
    QPushButton[kind="secondary"]:pressed {{ background: {t.selected}; }}
    QPushButton[kind="secondary"]:disabled {{ background: transparent; border-color: {t.line}; color: {t.disabled}; }}
    QPushButton[kind="quiet"] {{ border: none; border-radius: 6px; padding: 0 8px; min-height: 26px;
        background: transparent; color: {t.ink2}; font-weight: 500; }}
    QPushButton[kind="quiet"]:hover {{ background: {t.hover}; color: {t.ink}; }}
    QPushButton[kind="quiet"]:pressed {{ background: {t.selected}; color: {t.ink}; }}
    QToolButton[kind="icon"] {{ border: none; border-radius: 8px; background: transparent; padding: 0; }}
    QToolButton[kind="icon"]:hover {{ background: {t.hover}; }}
    QToolButton[kind="icon"]:pressed {{ background: {t.selected}; }}
    """


def _frames(t: Tokens) -> str:
    notices = "".join(
        f'QFrame#notice[kind="{kind}"] {{ background: {getattr(t, kind + "_tint")}; border-radius: 12px; }}'
        for kind in ("warn", "err", "info")
    )
    return f"""
    QWidget#page, QWidget#column, QScrollArea#transcript {{ background: {t.base}; }}
    QScrollArea#transcript {{ border: none; }}
    QWidget#header {{ background: {t.base}; border: none; border-bottom: 1px solid {t.line}; }}
    QFrame#bubble {{ background: {t.bubble}; border-radius: 14px; }}
    QFrame#composer {{ background: {t.raised}; border: 1px solid {t.control}; border-radius: 16px; padding: 1px; }}
    QFrame#composer[focused="true"] {{ border: 2px solid {t.ember}; padding: 0; }}
    QFrame#waiting {{ background: {t.sunken}; border: 1px solid {t.line}; border-radius: 8px; }}
    {notices}
    QTextBrowser, QPlainTextEdit {{ background: transparent; border: none; color: {t.ink};
        selection-background-color: {t.selected}; selection-color: {t.ink}; placeholder-text-color: {t.ink3}; }}
    """


def _scroll_bars(t: Tokens) -> str:
    return f"""
    QScrollBar:vertical {{ background: transparent; border: none; width: 12px; margin: 0; }}
    QScrollBar::handle:vertical {{ background: {t.selected}; border-radius: 4px; min-height: 32px; margin: 2px; }}
    QScrollBar::handle:vertical:hover {{ background: {t.edge}; }}
    QScrollBar::handle:vertical:disabled {{ background: transparent; }}
    QScrollBar::add-line:vertical, QScrollBar::sub-line:vertical {{ height: 0; border: none; }}
    QScrollBar::add-page:vertical, QScrollBar::sub-page:vertical {{ background: transparent; }}
    """


def _rest(t: Tokens) -> str:
    return f"""
    QProgressBar#loading {{ background: {t.track}; border: none; border-radius: 2px; max-height: 4px; }}
    QProgressBar#loading::chunk {{ background: {t.fire}; border-radius: 2px; }}
    QToolTip {{ border: none; padding: 4px 8px; }}
    QMenu {{ background: {t.raised}; color: {t.ink}; border: 1px solid {t.line}; padding: 4px; }}
    QMenu::item {{ padding: 6px 24px 6px 12px; border-radius: 6px; }}
    QMenu::item:selected {{ background: {t.selected}; color: {t.ink}; }}
    QMenu::item:disabled {{ color: {t.disabled}; }}
    QMenu::separator {{ height: 1px; background: {t.line}; margin: 4px 8px; }}
    """

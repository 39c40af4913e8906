"""The window's own small drawings: icons as strokes on a grid of 24, and the mark on a grid of 28.

Knows colours only as arguments: an icon bakes its colour in, so whoever shows one asks again when the theme changes.
GUI thread.
"""

from __future__ import annotations

from PySide6.QtCore import QByteArray, QRectF, Qt
from PySide6.QtGui import QGuiApplication, QIcon, QPainter, QPixmap
from PySide6.QtSvg import QSvgRenderer

_STROKES = {
    "new_chat": '<path d="M19.5 12.5v6a1.5 1.5 0 0 1-1.5 1.5H5.5a1.5 1.5 0 0 1-1.5-1.5V6a1.5 1.5 0 0 1 '
    '1.5-1.5h6"/><path d="M9.5 14.5l.5-3 8.6-8.6 2.5 2.5-8.6 8.6z"/>',
    "copy": '<path d="M8.5 8.5V4h11.5v11.5h-4.5"/><path d="M4 8.5h11.5v11.5H4z"/>',
    "check": '<path d="M4.5 13l5 5L20 7"/>',
    "send": '<path d="M12 19.5V5M5.5 11.5L12 5l6.5 6.5" stroke-width="2.3"/>',
    "close": '<path d="M6 6l12 12M18 6L6 18"/>',
    "warn": '<path d="M12 4.2L21 19.8H3z"/><path d="M12 10v4.6"/><path d="M12 17.2v.1" stroke-width="2.2"/>',
    "err": '<circle cx="12" cy="12" r="8.5"/><path d="M9 9l6 6M15 9l-6 6"/>',
    "info": '<circle cx="12" cy="12" r="8.5"/><path d="M12 11.3v5"/><path d="M12 7.9v.1" stroke-width="2.2"/>',
}

_MARK = (
    '<path d="M4 24V13a10 10 0 0 1 20 0v11M1.8 24h24.4" fill="none" stroke="{ink}" stroke-width="2.3" '
    'stroke-linecap="round" stroke-linejoin="round"/>'
    '<path d="M14 10C18.6 14 18.6 20.6 14 20.6C9.4 20.6 9.4 16.4 11.4 14.6C12.2 15.4 12.6 '
    '15.4 12.9 15.2C12.6 13.4 12.9 11.4 14 10Z" fill="{flame}"/>'
)


def icon_pixmap(name: str, colour: str, size: int, ratio: float = 1.0) -> QPixmap:
    """One icon in one colour, `size` logical pixels square, drawn for the screen's pixel ratio."""
    body = (
        f'<g fill="none" stroke="{colour}" stroke-width="1.6" stroke-linecap="round" stroke-linejoin="round">'
        f"{_STROKES[name]}</g>"
    )
    return _draw(body, 24, size, ratio)


def icon(name: str, colour: str, size: int) -> QIcon:
    """The icon for a button, sharp on the screen with the highest pixel ratio."""
    return QIcon(icon_pixmap(name, colour, size, _highest_ratio()))


def mark_pixmap(ink: str, flame: str, size: int, ratio: float = 1.0) -> QPixmap:
    """The hearth with its flame. A grey flame means that nothing is loaded: unlit."""
    return _draw(_MARK.format(ink=ink, flame=flame), 28, size, ratio)


def window_icon(ink: str, flame: str) -> QIcon:
    """The mark in the sizes that title bars and task lists use."""
    result = QIcon()
    for size in (16, 24, 32, 48, 64, 128):
        result.addPixmap(mark_pixmap(ink, flame, size))
    return result


def _draw(body: str, grid: int, size: int, ratio: float) -> QPixmap:
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {grid} {grid}">{body}</svg>'
    pixmap = QPixmap(round(size * ratio), round(size * ratio))
    pixmap.setDevicePixelRatio(ratio)
    pixmap.fill(Qt.GlobalColor.transparent)
    painter = QPainter(pixmap)
    QSvgRenderer(QByteArray(svg.encode())).render(painter, QRectF(0, 0, size, size))
    painter.end()
    return pixmap


def _highest_ratio() -> float:
    return max((screen.devicePixelRatio() for screen in QGuiApplication.screens()), default=1.0)

"""Contrast of the tokens, following the system, and the fonts that come with the window."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QPalette
from PySide6.QtWidgets import QApplication

from desktop.app import make_application
from desktop.stylesheet import stylesheet
from desktop.theme import DARK, DISPLAY, FONTS, INTERFACE, LIGHT, MONO, Theme, Tokens, font, mono_font, palette


def contrast(first: str, second: str) -> float:
    """WCAG 2.2 contrast ratio."""

    def luminance(colour: str) -> float:
        parts = QColor(colour).getRgbF()[:3]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(first), luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("tokens", [LIGHT, DARK], ids=["light", "dark"])
def test_text_can_be_read_on_every_surface_it_stands_on(tokens: Tokens) -> None:
    for surface in (tokens.base, tokens.raised, tokens.sunken, tokens.bubble):
        for ink in (tokens.ink, tokens.ink2, tokens.ink3, tokens.ember):
            assert contrast(ink, surface) >= 4.5
        assert contrast(tokens.control, surface) >= 3.0
    for tint in (tokens.warn_tint, tokens.err_tint, tokens.info_tint):
        assert contrast(tokens.ink, tint) >= 4.5
    for fill in (tokens.fire, tokens.fire_hover, tokens.fire_pressed):
        assert contrast(tokens.on_fire, fill) >= 4.5


@pytest.mark.parametrize("tokens", [LIGHT, DARK], ids=["light", "dark"])
def test_sheet_and_palette_are_made_of_tokens(qapp: QApplication, tokens: Tokens) -> None:
    known = {value.upper() for value in asdict(tokens).values()}
    used = {word.strip(";}").upper() for word in stylesheet(tokens).split() if word.startswith("#") and len(word) > 6}
    assert used and used <= known
    assert palette(tokens).color(QPalette.ColorRole.Text).name().upper() == tokens.ink


def test_theme_follows_the_system_unless_it_is_forced(qapp: QApplication) -> None:
    theme = Theme()
    changes: list[Tokens] = []
    theme.changed.connect(lambda: changes.append(theme.tokens))
    theme._follow(Qt.ColorScheme.Dark)
    theme._follow(Qt.ColorScheme.Dark)
    theme._follow(Qt.ColorScheme.Unknown)
    assert changes == [DARK, LIGHT]
    theme.force("dark")
    theme._follow(Qt.ColorScheme.Light)
    assert theme.is_dark


def test_fonts_are_shipped_with_their_licence(qapp: QApplication) -> None:
    make_application()
    assert font(15).families() == [INTERFACE]
    assert font(28, family=DISPLAY).families() == [DISPLAY]
    assert mono_font().families() == [MONO]
    assert font(15, family="No such family").families()
    assert "SIL OPEN FONT LICENSE" in (FONTS / "OFL.txt").read_text(encoding="utf-8")
    assert sum(path.stat().st_size for path in FONTS.iterdir()) < 2_000_000

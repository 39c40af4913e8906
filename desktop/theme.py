"""Colours, fonts and the palette of the window, as named tokens in a light and a dark set.

Owns which set is in use and says when it changes. Knows no widget; desktop/stylesheet.py turns the tokens into a
style sheet. GUI thread only.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from PySide6.QtCore import QObject, Qt, Signal
from PySide6.QtGui import QColor, QFont, QFontDatabase, QGuiApplication, QPalette

ThemeName = Literal["light", "dark"]

FONTS = Path(__file__).parent / "assets" / "fonts"
INTERFACE = "Inter"
DISPLAY = "Inter Display"
MONO = "JetBrains Mono"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """One set of colours, as #RRGGBB. Ember means work, the main action or keyboard focus, and nothing else."""

    window: str
    base: str
    raised: str
    sunken: str
    bubble: str
    hover: str
    selected: str
    line: str
    edge: str
    control: str
    track: str
    ink: str
    ink2: str
    ink3: str
    disabled: str
    ember: str
    fire: str
    fire_hover: str
    fire_pressed: str
    on_fire: str
    kept: str
    ok: str
    warn: str
    warn_tint: str
    err: str
    err_tint: str
    info: str
    info_tint: str


LIGHT = Tokens(
    window="#EEEBE6", base="#FAF8F5", raised="#FFFFFF", sunken="#F2EFEA", bubble="#EFEAE3", hover="#E5E0D9",
    selected="#DDD6CD", line="#E1DBD3", edge="#CDC4B8", control="#8C8377", track="#E4DDD4",
    ink="#27231F", ink2="#564F47", ink3="#6B6359", disabled="#A79F94",
    ember="#AE4517", fire="#AE4517", fire_hover="#97390F", fire_pressed="#7F2F0B", on_fire="#FFFFFF", kept="#DDA787",
    ok="#35694A", warn="#835A00", warn_tint="#F6EAD0", err="#A62F24", err_tint="#F9E4E0",
    info="#33617F", info_tint="#E2ECF2",
)  # fmt: skip

DARK = Tokens(
    window="#181615", base="#1F1C1A", raised="#292522", sunken="#171413", bubble="#2D2926", hover="#332D29",
    selected="#3E3731", line="#38322E", edge="#4E4740", control="#827A6E", track="#3D3631",
    ink="#ECE7E0", ink2="#BBB3A8", ink3="#9E968A", disabled="#6A6359",
    ember="#EE9560", fire="#E08048", fire_hover="#EA9462", fire_pressed="#CB6D37", on_fire="#21120A", kept="#82523A",
    ok="#8FC39D", warn="#DDB45E", warn_tint="#352B16", err="#F2917F", err_tint="#3B211D",
    info="#8FB9D8", info_tint="#1D2B36",
)  # fmt: skip


class Theme(QObject):
    """The set of tokens in use: the one that was asked for, else the system's."""

    changed = Signal()

    def __init__(self, forced: ThemeName | None = None, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._forced = forced
        hints = QGuiApplication.styleHints()
        self.tokens = self._choose(hints.colorScheme())
        hints.colorSchemeChanged.connect(self._follow)

    @property
    def is_dark(self) -> bool:
        return self.tokens is DARK

    def force(self, name: ThemeName | None) -> None:
        """Use this set from now on; None follows the system again."""
        self._forced = name
        self._follow(QGuiApplication.styleHints().colorScheme())

    def _choose(self, scheme: Qt.ColorScheme) -> Tokens:
        dark = self._forced == "dark" if self._forced else scheme == Qt.ColorScheme.Dark
        return DARK if dark else LIGHT

    def _follow(self, scheme: Qt.ColorScheme) -> None:
        tokens = self._choose(scheme)
        if tokens is not self.tokens:
            self.tokens = tokens
            self.changed.emit()


def palette(tokens: Tokens) -> QPalette:
    """The palette for what Fusion paints itself: menus, tooltips, selections, dialogs."""
    role = QPalette.ColorRole
    colours = {
        role.Window: tokens.base, role.WindowText: tokens.ink, role.Base: tokens.raised, role.Text: tokens.ink,
        role.AlternateBase: tokens.sunken, role.Button: tokens.raised, role.ButtonText: tokens.ink,
        role.BrightText: tokens.on_fire, role.PlaceholderText: tokens.ink3, role.Link: tokens.ember,
        role.LinkVisited: tokens.ember, role.Highlight: tokens.selected, role.HighlightedText: tokens.ink,
        role.Accent: tokens.fire, role.Light: tokens.raised, role.Midlight: tokens.line, role.Mid: tokens.edge,
        role.Dark: tokens.control, role.Shadow: tokens.line,
        role.ToolTipBase: tokens.selected if tokens is DARK else tokens.ink,
        role.ToolTipText: tokens.ink if tokens is DARK else tokens.base,
    }  # fmt: skip
    result = QPalette()
    for colour_role, colour in colours.items():
        result.setColor(colour_role, QColor(colour))
    for colour_role in (role.WindowText, role.Text, role.ButtonText):
        result.setColor(QPalette.ColorGroup.Disabled, colour_role, QColor(tokens.disabled))
    return result


def install_fonts() -> None:
    """Register the fonts that come with the window. A file that is missing leaves the system's font in its place."""
    for path in sorted(FONTS.glob("*.[ot]tf")):
        QFontDatabase.addApplicationFont(str(path))


def font(pixels: int = 13, weight: QFont.Weight = QFont.Weight.Normal, *, family: str = INTERFACE) -> QFont:
    """A font of the window at a size in pixels. Unhinted, so that lines break alike on every computer."""
    result = QFont(QFontDatabase.systemFont(QFontDatabase.SystemFont.GeneralFont))
    if family in QFontDatabase.families():
        result.setFamilies([family])
    result.setPixelSize(pixels)
    result.setWeight(weight)
    result.setHintingPreference(QFont.HintingPreference.PreferNoHinting)
    if family == DISPLAY and pixels >= 24:
        result.setLetterSpacing(QFont.SpacingType.PercentageSpacing, 99)
    return result


def mono_font(pixels: int = 13) -> QFont:
    """The font of code, with its ligatures off: "->" stays two characters."""
    result = QFont(QFontDatabase.systemFont(QFontDatabase.SystemFont.FixedFont))
    if MONO in QFontDatabase.families():
        result.setFamilies([MONO])
    result.setPixelSize(pixels)
    result.setHintingPreference(QFont.HintingPreference.PreferNoHinting)
    for feature in ("calt", "liga"):
        result.setFeature(QFont.Tag(feature), 0)
    return result

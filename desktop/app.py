"""Builds everything that the window needs, once, and runs it until it is closed.

The window is on the screen before numpy, the tokenizer or the GPU are imported: the bridge does that on a worker. Main
thread.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QApplication

from desktop import words
from desktop.bridge import Bridge, EngineFace
from desktop.main_window import MainWindow
from desktop.session import Session
from desktop.stylesheet import stylesheet
from desktop.theme import Theme, ThemeName, font, install_fonts, palette

if TYPE_CHECKING:
    from engine.loading import KernelSet, KvType, LoadOptions

_log = logging.getLogger(__name__)

SHUTDOWN_S = 1.2
_GRACE_MS = 300


def run_window(
    model: Path | None = None,
    adapter: str | None = None,
    context: int | None = None,
    kv_type: KvType = "f16",
    *,
    kernels: KernelSet | None = None,
    theme: ThemeName | None = None,
    build_engine: Callable[[], EngineFace] | None = None,
) -> int:
    """Open the window with a model and return the exit status once it is closed.

    `model` None takes the one that was used last, else the starter. `theme` None follows the system. `build_engine`
    runs on a worker and stands in for the real engine in tests.
    """

    def options() -> LoadOptions:
        from engine.loading import LoadOptions
        from engine.tiers.settings import TierSettings
        from models.library import prefix_cache_dir, resolve

        return LoadOptions(
            model=resolve(None) if model is None else model,
            adapter=adapter,
            context=context,
            kv_type=kv_type,
            kernels=kernels,
            tiers=TierSettings(root=prefix_cache_dir()),
        )

    application = make_application()
    look = Theme(theme)
    dress(application, look)
    bridge = Bridge(build_engine or _real_engine)
    session = Session(bridge, options)
    session.model_ready.connect(lambda loaded: bridge.in_background(lambda: _remember(loaded.path)))
    window = MainWindow(session, look, words.model_name(model) if model else "")
    ended = _quit_when_closed(application, window, bridge)
    window.show()
    application.exec()
    bridge.finish()
    if not ended:
        _log.warning("the engine was still busy when the window closed")
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # a driver call can't be interrupted; Python's own way out would wait for it or crash under it
    return 0


def make_application() -> QApplication:
    """The one QApplication, with the window's fonts and a style that looks alike on every system."""
    existing = QApplication.instance()
    application = existing if isinstance(existing, QApplication) else QApplication(sys.argv[:1])
    application.setApplicationName("Inglenook")
    application.setDesktopFileName("inglenook")
    application.setQuitOnLastWindowClosed(False)
    application.setStyle("Fusion")
    install_fonts()
    application.setFont(font(13))
    return application


def dress(application: QApplication, theme: Theme) -> None:
    """Give the application the theme's palette and style sheet, now and whenever the theme changes."""

    def apply() -> None:
        application.setPalette(palette(theme.tokens))
        application.setStyleSheet(stylesheet(theme.tokens))

    theme.changed.connect(apply)
    apply()


def _quit_when_closed(application: QApplication, window: MainWindow, bridge: Bridge) -> list[bool]:
    """Shut the engine down when the window closes, then quit; the list is empty while the engine has not ended."""
    ended: list[bool] = []

    def close() -> None:
        bridge.shut_down(SHUTDOWN_S)
        QTimer.singleShot(round(SHUTDOWN_S * 1000) + _GRACE_MS, application, application.quit)

    def stopped() -> None:
        ended.append(True)
        application.quit()

    window.closed.connect(close)
    bridge.stopped.connect(stopped)
    return ended


def _real_engine() -> EngineFace:
    from engine.loader import load_model
    from engine.threaded import ThreadedEngine

    return ThreadedEngine(load_model)


def _remember(path: Path) -> None:
    from models.library import remember_last

    remember_last(path)

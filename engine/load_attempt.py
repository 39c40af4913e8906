"""One attempt to load a model, from its loader to an outcome: whatever a load raises becomes a sentence.

Knows no queue and no request. The engine's background thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from engine.errors import EngineError
from engine.instructions import LoadFailed
from engine.loading import LoadCancelled, LoadedModel, Loader, LoadOptions, LoadProgress
from engine.trace import Trace
from models.errors import ModelError

logger = logging.getLogger(__name__)

SUPERSEDED = LoadFailed("This load was given up because another instruction came after it.", cancelled=True)


def attempt_load(
    loader: Loader,
    options: LoadOptions,
    progress: Callable[[LoadProgress], None],
    cancelled: Callable[[], bool],
    trace: Trace,
) -> LoadedModel | LoadFailed:
    """The model, or why there is none. Raises nothing."""
    try:
        with trace.span("load"):
            loaded = loader(options, progress, cancelled)
    except LoadCancelled:
        return SUPERSEDED
    except (ModelError, EngineError) as error:
        return LoadFailed(str(error))
    except MemoryError:
        logger.exception("There was not enough memory to load %s", options.model)
        return LoadFailed(
            f"There is not enough memory to load {options.model.name}. "
            "Close other programs, or use a smaller context or model."
        )
    except BaseException as error:
        # BaseException: a panic inside a Rust library is no Exception, and the engine's thread must outlive it.
        logger.exception("Loading %s failed", options.model)
        return LoadFailed(f"Loading {options.model.name} failed ({type(error).__name__}: {error}).")
    if cancelled():
        close_table(loaded)
        return SUPERSEDED
    return loaded


def close_table(model: LoadedModel) -> None:
    """Free what a model has on its device."""
    try:
        model.table.close()
    except Exception:
        # The device may be gone already; there is nothing left to free then.
        logger.exception("Closing %s failed", model.name)

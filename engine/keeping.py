"""Which tiers belong to the model that answers: opened with it, kept over a rebuild, closed with it.

Knows neither files nor pages. Only the engine's background thread touches it.
"""

from __future__ import annotations

import logging

from engine.engine import Engine
from engine.errors import DeviceFailed
from engine.loading import LoadedModel, LoadOptions
from engine.tiers.settings import open_store
from engine.tiers.store import KvStore

logger = logging.getLogger(__name__)

SAVE_S = 1.0
"""The longest that a model which goes away is kept for what is still to be read from its device."""


class Keeping:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._store: KvStore | None = None

    def open(self, model: LoadedModel, options: LoadOptions | None) -> KvStore | None:
        """The tiers of a model that was just loaded; the same ones where it is the same model again."""
        store = self._store
        if store is None or store.fingerprint != model.fingerprint:
            self.close(SAVE_S)  # so that what was just written is found where the same model comes back
            if options is None or options.tiers is None:
                return None
            page_bytes = model.table.limits.page_bytes
            try:
                store = self._store = open_store(options.tiers, model.fingerprint, page_bytes, model.name)
            except Exception:
                # The model answers as well without them.
                logger.exception("Conversations are not kept: their folder could not be opened")
                store = None
        if store is not None:
            model.answers.look_in(store.answers, model.tokenizer.token_bytes)
        return store

    def save_rest(self, engine: Engine) -> None:
        """Read what is still to be kept from a device that is about to go."""
        try:
            engine.save_rest(SAVE_S)
        except DeviceFailed:
            logger.info("The device was gone before the last pages were kept")
        except Exception:
            # Nothing depends on it, and the model goes away all the same.
            logger.exception("The last pages could not be kept")

    def forget(self, model: LoadedModel | None, chat: str | None) -> None:
        """Let go of what only this chat has, or with None of everything. Done soon."""
        if self._store is not None:
            self._store.forget(chat)
        if model is not None and chat is None:
            model.answers.clear()

    def close(self, timeout_s: float) -> None:
        """Let the tiers go. What waits for the disk is still written, if the process lives as long."""
        store, self._store = self._store, None
        if store is not None and not store.close(timeout_s) and timeout_s:
            logger.warning("The disk was too slow: part of the last conversation is not kept")

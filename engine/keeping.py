"""Which tiers belong to the model that answers: opened with it, kept over a rebuild, closed with it.

Knows neither files nor pages. The engine's background thread opens and closes; forget() may be called from any thread.
"""

from __future__ import annotations


from engine.loading import LoadedModel
from engine.request import Request
from engine.tiers.settings import TierSettings, forget_on_disk, open_store
from engine.tiers.store import KvStore


class Keeping:
    """See the module's docstring. Without settings nothing is kept below the device."""

    def __init__(self, settings: TierSettings | None) -> None:
        self._settings = settings
        self._store: KvStore | None = None

    @property
    def store(self) -> KvStore | None:
        """The tiers of the model that answers."""
        return self._store

    def store_for(self, model: LoadedModel) -> KvStore | None:
        """The tiers of a model that was just loaded; the same ones where it is the same model again."""
        if self._settings is None:
            return None
        store = self._store
        if store is None or store.fingerprint != model.fingerprint:
            self.close(0.0)
            page_bytes = model.table.limits.page_bytes
            self._store = store = open_store(self._settings, model.fingerprint, page_bytes, model.name)
        if store is not None:
            model.answers.look_in(store.recall_answer, model.tokenizer.token_bytes)
        return store

    def remember_answer(self, request: Request, text: str, tokens: tuple[int, ...]) -> None:
        """Let an answer outlive the process too, unless its request wants no trace."""
        if self._store is not None and request.persist and request.use_cache:
            self._store.remember_answer(request.chat, text, tokens)

    def forget(self, chat: str | None) -> None:
        """Let go of what only this chat has, or with None of everything. Done soon."""
        store, settings = self._store, self._settings
        if store is not None:
            store.forget(chat)
        elif settings is not None and settings.root is not None:
            forget_on_disk(settings.root, chat)

    def close(self, timeout_s: float) -> bool:
        """Let the tiers go; what waits for the disk is written, by then or later. False if it was not by then."""
        store, self._store = self._store, None
        return store is None or store.close(timeout_s)

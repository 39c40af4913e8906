"""Which model this is, byte for byte, and how it is computed here: the fingerprint, found out beside a load.

Owns the thread that reads the files again for their digest (the weights' way to the device is not to wait for that).
Knows what a fingerprint is made of, not what it is for. The engine's background thread makes and closes it.
"""

from __future__ import annotations

import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

from engine.tiers.file_digest import FileDigest, digest_files
from engine.tiers.fingerprint import FINGERPRINT_BYTES, Setting, fingerprint
from engine.tiers.notes import Notes
from engine.tiers.settings import TierSettings
from models.kv_pages import PAGE_LAYOUT_VERSION
from models.library import parts
from shaders.adapters import AdapterInfo
from shaders.traits import Traits

logger = logging.getLogger(__name__)


class ModelIdentity:
    """Begins to read the files at once. Use it in `with`; leaving it gives up what is not done."""

    def __init__(self, path: Path, settings: TierSettings | None) -> None:
        self._settings = settings
        self._given_up = threading.Event()
        self._threads = ThreadPoolExecutor(1, "inglenook-identity")
        wanted = settings is not None and settings.root is not None
        self._digests = self._threads.submit(self._digest, path) if wanted else None

    def __enter__(self) -> ModelIdentity:
        return self

    def __exit__(self, *error: object) -> None:
        self._given_up.set()
        self._threads.shutdown()

    def fingerprint(self, adapter: AdapterInfo, traits: Traits, kv_type: str, settings: tuple[Setting, ...]) -> bytes:
        """The fingerprint, once the files are read; nothing where none is wanted, or the files changed meanwhile.

        What is kept in memory only needs none that a later process would understand: it is a random one then.
        """
        if self._settings is None:
            return b""
        if self._digests is None:
            return os.urandom(FINGERPRINT_BYTES)
        digests = self._digests.result()
        if not digests or not all(digest.unchanged for digest in digests):
            return b""
        return fingerprint(
            files=[digest.digest for digest in digests],
            kv_type=kv_type,
            kernel_set=traits.kernel_set,
            clusters=traits.clusters,
            adapter=adapter.name,
            backend=adapter.backend,
            page_layout=PAGE_LAYOUT_VERSION,
            settings=(adapter.driver, version("wgpu"), version("numpy"), *settings),
        )

    def _digest(self, path: Path) -> tuple[FileDigest, ...]:
        assert self._settings is not None and self._settings.root is not None, "nothing is wanted"
        notes = Notes(self._settings.root)
        try:
            return digest_files(parts(path), notes, self._given_up.is_set) or ()
        except OSError as error:
            logger.warning("%s could not be read again, so its conversations are not kept: %s", path.name, error)
            return ()
        finally:
            notes.close()

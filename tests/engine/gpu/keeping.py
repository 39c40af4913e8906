"""An engine on a real model's table with tiers below it, and a device that is made to forget."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from engine.engine import Engine
from engine.gpu_table import GpuTable
from engine.loading import LoadedModel
from engine.tiers.disk_limits import DiskLimits
from engine.tiers.settings import TierSettings, open_store
from engine.tiers.store import KvStore
from tests.engine.gpu.conftest import table_of
from tests.engine.gpu.test_serving import Server

FINGERPRINT = b"a model's finger"
ROOMY = DiskLimits(budget_bytes=1 << 34, reserve_bytes=0, daily_write_bytes=1 << 34)
WAIT_S = 30.0


def open_tiers(
    model: LoadedModel, root: Path | None, *, host_bytes: int = 1 << 30, fingerprint: bytes = FINGERPRINT
) -> KvStore:
    """The tiers of a process that begins; without host_bytes all has to come from the disk."""
    settings = TierSettings(root=root, host_bytes=host_bytes, disk=ROOMY)
    store = open_store(settings, fingerprint, model.table.limits.page_bytes, model.name)
    assert store is not None
    return store


def spoil(table: GpuTable, num_pages: int) -> None:
    """Set every byte of the first pages, so that what was not brought there is no number."""
    kv = table._runner._kv
    for buffer in (*kv.keys, *kv.values):
        table._runner.gpu.write(buffer, 0, np.full(buffer.size // kv.num_pages * num_pages, 255, np.uint8))


class Keeper(Server):
    """A Server whose pages go to a store and come from there. What the device held before is spoiled."""

    def __init__(
        self, model: LoadedModel, store: KvStore | None, *, num_pages: int | None = None, keep_logits: bool = False
    ) -> None:
        super().__init__(model, num_pages=num_pages, keep_logits=keep_logits)
        self.store = store
        self.engine = Engine(self.table, model.tokenizer, store=store)  # type: ignore[arg-type]  # as in Server
        spoil(table_of(model), self.table.limits.num_pages)

    def tell(self, name: str, prompt: list[int], count: int, **options) -> list[int]:
        """The answer of so many tokens, all of it on disk afterwards."""
        self.ask(name, prompt, count, ignore_eos=True, **options)
        if self.store is not None:
            assert self.store.flush(WAIT_S)
        return self.tokens[name]

    def cached(self, name: str) -> int:
        return self.usage[name].cached_tokens

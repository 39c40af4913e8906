"""Copies of whole pages in every layer, as the commands that a step starts with.

WebGPU copies nothing within one buffer, and all layers' pages lie in few: a page goes through a buffer of its own,
which is allocated when first needed. Knows page numbers, not sequences; callers have checked them. The engine's
background thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from models.kv_pages import KvPages
from shaders.device import Gpu
from shaders.recorder import Copy


class PageCopier:
    """Makes the commands for one model's pages."""

    def __init__(self, gpu: Gpu, kv: KvPages) -> None:
        self._gpu = gpu
        self._page_bytes = kv.keys[0].size // kv.num_pages
        self._places = [(buffer.pointer, buffer.offset) for buffer in (*kv.keys, *kv.values)]

    def copies(self, pairs: Sequence[tuple[int, int]]) -> list[Copy]:
        """Commands that copy (source, target) page by page, in order. Raises OutOfDeviceMemory."""
        size = self._page_bytes
        found: list[Copy] = []
        for source, target in pairs:
            for index, (buffer, first) in enumerate(self._places):
                found.append(Copy(buffer, self._between, size, first + source * size, index * size))
            for index, (buffer, first) in enumerate(self._places):
                found.append(Copy(self._between, buffer, size, index * size, first + target * size))
        return found

    @cached_property
    def _between(self) -> int:
        return self._gpu.storage("page between", self._page_bytes * len(self._places)).pointer

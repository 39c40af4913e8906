"""Moves whole pages between the device and the host: what a step that loads or saves them consists of.

Owns the packed buffer that pages pass through, and the kernels' list of page numbers; both are allocated, and the
kernels compiled, when first asked for. A step takes a dispatch for each arena that holds pages, not a copy for each
layer. Knows page numbers, not sequences; callers have checked them. The engine's background thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Literal

import numpy as np

from models.kv_pages import KvPages
from shaders.device import Buffer, Gpu
from shaders.dispatch import Dispatch
from shaders.kernel import KernelCache
from shaders.ops.pages import PageWindow, gather_pages, page_windows, scatter_pages
from shaders.recorder import Recorder

MovePart = Literal["save_pages", "load_pages"]


class PageMover:
    """For one model's pages, up to `max_pages` at a time. page_bytes: one page's keys and values in every layer."""

    def __init__(self, gpu: Gpu, kernels: KernelCache, kv: KvPages, max_pages: int) -> None:
        self._gpu = gpu
        self._kernels = kernels
        self._kv = kv
        self._part_bytes = kv.keys[0].size // kv.num_pages
        self.page_bytes = self._part_bytes * len(kv.parts)
        self.max_bytes = self.page_bytes * max_pages
        self._max_pages = max_pages

    def part(self, name: MovePart) -> Sequence[Dispatch]:
        """The dispatches of a step; they count pages as rows. Raises OutOfDeviceMemory or BindingError."""
        return self._save if name == "save_pages" else self._load

    def write(self, recorder: Recorder, pages: Sequence[int], data: bytes | None = None) -> None:
        """Name the pages of the next submit and, for a load, upload what they will hold.

        All steps share the two buffers, however many are in flight: the queue copies what is written here between the
        work of the submit before and that of the submit after, and itself keeps the bytes until then.
        """
        numbers = np.array(pages, np.uint32)
        recorder.write(self._moved.pointer, 0, numbers.ctypes.data, numbers.nbytes)
        if data is not None:
            held = np.frombuffer(data, np.uint8)
            recorder.write(self.packed.pointer, 0, held.ctypes.data, held.nbytes)

    @cached_property
    def packed(self) -> Buffer:
        """Pages on their way, [max_pages][part][part bytes]: a saved step's are here once its dispatches have run."""
        return self._gpu.storage("moved pages", self.max_bytes)

    @cached_property
    def _moved(self) -> Buffer:
        return self._gpu.storage("moved page numbers", 4 * self._max_pages)

    @cached_property
    def _windows(self) -> list[PageWindow]:
        return page_windows(self._gpu, self._kv.parts, self._part_bytes)

    @cached_property
    def _save(self) -> list[Dispatch]:
        return gather_pages(self._kernels, self._windows, moved=self._moved, packed=self.packed)

    @cached_property
    def _load(self) -> list[Dispatch]:
        return scatter_pages(self._kernels, self._windows, moved=self._moved, packed=self.packed)

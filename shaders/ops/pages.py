"""Whole pages from where they lie into one packed buffer, and back, as typed calls.

A page lies in many parts, one for each buffer [num_pages][part_bytes] that a layer has. Many of those are parts of one
arena, so one dispatch moves all that lie there. Knows nothing of layers nor of what a page holds. The engine's
background thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shaders.device import Buffer, Gpu
from shaders.dispatch import Dispatch
from shaders.errors import BindingError
from shaders.kernel import KernelCache

_VECTOR_BYTES = 16
_THREADS = 64


@dataclass(frozen=True, slots=True)
class PageWindow:
    """Parts that lie in one buffer at equal distances: `pages` spans them, within one binding. `shape`: uniform."""

    pages: Buffer
    shape: Buffer
    num_parts: int
    vectors: int


def page_windows(gpu: Gpu, parts: Sequence[Buffer], part_bytes: int) -> list[PageWindow]:
    """As few windows as the parts allow, in their order. part_bytes: of one page in one part.

    Raises BindingError where that is no multiple of 16.
    """
    if part_bytes % _VECTOR_BYTES:
        raise BindingError(f"pages: {part_bytes} bytes in each part are no multiple of {_VECTOR_BYTES}")
    windows: list[PageWindow] = []
    first = 0
    while first < len(parts):
        count = _run_length(parts[first:], gpu.max_binding_bytes)
        start, last = parts[first], parts[first + count - 1]
        span = Buffer("pages", last.offset + last.size - start.offset, start.handle, start.serial, start.offset)
        stride = parts[first + 1].offset - start.offset if count > 1 else 0
        shape = [part_bytes // _VECTOR_BYTES, stride // _VECTOR_BYTES, first, len(parts)]
        uniform = gpu.uniform("page window", np.array(shape, np.uint32))
        windows.append(PageWindow(span, uniform, count, part_bytes // _VECTOR_BYTES))
        first += count
    return windows


def gather_pages(
    kernels: KernelCache, windows: Sequence[PageWindow], *, moved: Buffer, packed: Buffer
) -> list[Dispatch]:
    """packed[i] = page moved[i]; the dispatches count pages as their rows.

    moved u32 [pages]; packed [pages][parts][part_bytes]. Both must hold as many pages as a step may move. Raises
    BindingError.
    """
    return _dispatches(kernels, "gather_pages", windows, moved, packed)


def scatter_pages(
    kernels: KernelCache, windows: Sequence[PageWindow], *, moved: Buffer, packed: Buffer
) -> list[Dispatch]:
    """Page moved[i] = packed[i], no page twice; otherwise as gather_pages()."""
    return _dispatches(kernels, "scatter_pages", windows, moved, packed)


def _dispatches(
    kernels: KernelCache, name: str, windows: Sequence[PageWindow], moved: Buffer, packed: Buffer
) -> list[Dispatch]:
    found = []
    for window in windows:
        buffers = {"window": window.shape, "moved": moved, "packed": packed, "pages": window.pages}
        grid = (-(-window.vectors // _THREADS), 1, window.num_parts)
        found.append(Dispatch(single=kernels.get(name).bind(buffers), grid=grid))
    return found


def _run_length(parts: Sequence[Buffer], max_bytes: int) -> int:
    """How many parts from the first on one window can take."""
    start = parts[0]
    count = 1
    while count < len(parts):
        part = parts[count]
        stride = parts[1].offset - start.offset
        aligned = part.serial == start.serial and part.offset == start.offset + count * stride and stride > 0
        if not aligned or part.offset + part.size - start.offset > max_bytes:
            break
        count += 1
    return count

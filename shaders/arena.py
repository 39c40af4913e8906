"""Many small buffers inside few large ones. wgpu tracks every buffer of every step: with one buffer per weight, half of
a step's host time goes into that.

Only takes, never gives back: an arena lives as long as its model. Parts of one arena cannot be bound for reading and
for writing in the same dispatch (shaders/kernel.py refuses it). The engine's background thread.
"""

from __future__ import annotations

from collections.abc import Iterable

from shaders.device import Buffer, Gpu

ARENA_ALIGNMENT = 256  # the largest that any device asks of a binding's offset


class Arena:
    """Hands out parts of chunks of `chunk_bytes`; what is larger than half a chunk gets a buffer of its own."""

    def __init__(self, gpu: Gpu, name: str, chunk_bytes: int, *, uniform: bool = False) -> None:
        self._gpu = gpu
        self._name = name
        self._chunk_bytes = chunk_bytes
        self._uniform = uniform
        self._chunk: Buffer | None = None
        self._used = 0

    def take(self, name: str, size: int) -> Buffer:
        """A zeroed part of `size` bytes, rounded up to 16. Raises OutOfDeviceMemory or BindingError as Gpu does."""
        if size > self._chunk_bytes // 2:
            return self._gpu.storage(name, size)
        if self._chunk is None or self._used + size > self._chunk.size:
            self._chunk = self._new_chunk()
            self._used = 0
        part = Buffer(name, max(16, -(-size // 16) * 16), self._chunk.handle, self._chunk.serial, self._used)
        self._used += -(-part.size // ARENA_ALIGNMENT) * ARENA_ALIGNMENT
        return part

    def _new_chunk(self) -> Buffer:
        create = self._gpu.uniform_storage if self._uniform else self._gpu.storage
        chunk = create(self._name, self._chunk_bytes)
        # wgpu zeroes what it believes unwritten at the first use, and for bindings with dynamic offsets it believes
        # the wrong thing: without this it would later wipe parts that kernels have filled.
        self._gpu.clear(chunk)
        return chunk


def arena_bytes(sizes: Iterable[int], chunk_bytes: int) -> int:
    """What an Arena allocates for parts of these sizes, taken in this order."""
    total, used = 0, chunk_bytes + 1
    for size in sizes:
        if size > chunk_bytes // 2:
            total += -(-size // 16) * 16
            continue
        if used + size > chunk_bytes:
            total += chunk_bytes
            used = 0
        used += -(-max(16, size) // ARENA_ALIGNMENT) * ARENA_ALIGNMENT
    return total

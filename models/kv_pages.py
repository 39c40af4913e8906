"""The device's memory of a model's keys and values, in pages of 16 tokens, and the page table that leads to them.

Owns layout and sizes (drawn in shaders/wgsl/common/heads.wgsl); which page belongs to whom is the engine's business.
The engine's background thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from models.config import ModelConfig
from shaders.arena import ARENA_ALIGNMENT, Arena
from shaders.device import Buffer, Gpu
from shaders.errors import BindingError

PAGE_TOKENS = 16
PAGE_LAYOUT_VERSION = 1
"""Stands for what a page's bytes mean once they have left the device: the order of KvPages.parts, and within a part the
order that common/heads.wgsl draws, of the type and the page size that the model was loaded with. Whoever changes any of
these counts it up, so that pages saved before are not taken for pages of the new kind."""

KvType = Literal["f16", "f32"]
_ARENA_BYTES = 128 << 20
_ELEMENT_BYTES = {"f16": 2, "f32": 4}


@dataclass(frozen=True, slots=True)
class KvPages:
    """One key and one value buffer per layer, [num_pages][num_kv_heads][...]; page_table [slots, table_stride] u32."""

    kv_type: KvType
    num_pages: int
    table_stride: int
    num_kv_heads: int
    head_dim: int
    keys: tuple[Buffer, ...]
    values: tuple[Buffer, ...]
    page_table: Buffer

    @property
    def parts(self) -> tuple[Buffer, ...]:
        """What a page consists of, in the order of its bytes outside the device: keys layer by layer, then values."""
        return (*self.keys, *self.values)


def blank_tail(kv: KvPages, page: bytes, num_tokens: int) -> bytes:
    """A page outside the device, with zeros behind its first num_tokens positions in every layer."""
    element, layers, heads, width = _ELEMENT_BYTES[kv.kv_type], len(kv.keys), kv.num_kv_heads, kv.head_dim
    blank = np.frombuffer(page, np.uint8).reshape(2, layers, -1).copy()
    blank[0].reshape(layers, heads, width // 8, PAGE_TOKENS, 8 * element)[:, :, :, num_tokens:] = 0
    blank[1].reshape(layers, heads, PAGE_TOKENS, width * element)[:, :, num_tokens:] = 0
    return blank.tobytes()


def layer_page_bytes(config: ModelConfig, kv_type: KvType) -> int:
    """Bytes of one page's keys (or values) in one layer."""
    return PAGE_TOKENS * config.num_kv_heads * config.head_dim * _ELEMENT_BYTES[kv_type]


def allocate_pages(
    gpu: Gpu, config: ModelConfig, *, kv_type: KvType, num_pages: int, num_slots: int, context: int
) -> KvPages:
    """Allocate all pages at once. Raises OutOfDeviceMemory, or BindingError where a layer exceeds one binding."""
    size = num_pages * layer_page_bytes(config, kv_type)
    if size > gpu.max_binding_bytes:
        tokens = gpu.max_binding_bytes // layer_page_bytes(config, kv_type) * PAGE_TOKENS
        raise BindingError(f"this device can keep {tokens} tokens of this model; load it with a smaller context")
    stride = -(-context // PAGE_TOKENS)
    keys = [f"keys {layer}" for layer in range(config.num_layers)]
    values = [f"values {layer}" for layer in range(config.num_layers)]
    parts = _in_few_buffers(gpu, [*keys, *values], size)
    return KvPages(
        kv_type=kv_type,
        num_pages=num_pages,
        table_stride=stride,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        keys=parts[: config.num_layers],
        values=parts[config.num_layers :],
        page_table=gpu.storage("page table", 4 * num_slots * stride),
    )


def _in_few_buffers(gpu: Gpu, names: Sequence[str], size: int) -> tuple[Buffer, ...]:
    """Parts of one size, in arenas that end with their last part: pages take just what a budget counted for them."""
    padded = -(-size // ARENA_ALIGNMENT) * ARENA_ALIGNMENT
    per_arena = max(1, _ARENA_BYTES // padded)
    parts: list[Buffer] = []
    for first in range(0, len(names), per_arena):
        group = names[first : first + per_arena]
        arena = Arena(gpu, "pages", len(group) * padded)
        parts += [arena.take(name, size) for name in group]
    return tuple(parts)

"""The quantization block types that Inglenook computes, by their number in a GGUF file.

One file describes one type; a further type is one more file and its place in the tuple below, which is spelled out
so that a frozen app finds every module. Does not know tensors or the GPU. No thread of its own.
"""

from collections.abc import Mapping
from types import MappingProxyType

from models.blocks.base import BlockType
from models.blocks.bf16 import BF16
from models.blocks.f16 import F16
from models.blocks.f32 import F32
from models.blocks.q4_0 import Q4_0
from models.blocks.q4_1 import Q4_1
from models.blocks.q8_0 import Q8_0

BLOCK_TYPES: Mapping[int, BlockType] = MappingProxyType(
    {block.ggml_id: block for block in (F32, F16, BF16, Q8_0, Q4_1, Q4_0)}
)

__all__ = ["BLOCK_TYPES", "BlockType"]

"""Small Llama files with random weights in any shape: every block is drawn as it lies in the file.

The weights' spread keeps activations near 1 through the layers. The vocabulary is a formality.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from models.blocks import BLOCK_TYPES, BlockType
from tests.gguf_writer import Value, WrittenTensor, write_gguf

TYPES = {block.name: block for block in BLOCK_TYPES.values()}
Blocks = npt.NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A Llama's sizes. `types` names block types by a tensor's last word ("q", "gate", "embd"); others are `type`."""

    hidden: int = 128
    vocab_size: int = 320
    num_layers: int = 2
    num_q_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 32
    intermediate: int = 160
    context: int = 128
    type: str = "F32"
    types: Mapping[str, str] = field(default_factory=dict)
    tied: bool = True
    biases: tuple[str, ...] = ()
    rope_dim: int | None = None
    rope_scale: float = 1.0
    rope_factors: bool = False


def write_llama(path: Path, shape: Shape, seed: int = 1) -> Path:
    """Write the model; the same seed gives the same bytes."""
    return write_gguf(path, _metadata(shape), _tensors(shape, np.random.default_rng(seed)))


def _metadata(shape: Shape) -> dict[str, Value]:
    return {
        "general.architecture": "llama",
        "general.name": "random",
        "llama.block_count": shape.num_layers,
        "llama.context_length": shape.context,
        "llama.embedding_length": shape.hidden,
        "llama.feed_forward_length": shape.intermediate,
        "llama.attention.head_count": shape.num_q_heads,
        "llama.attention.head_count_kv": shape.num_kv_heads,
        "llama.attention.key_length": shape.head_dim,
        "llama.attention.value_length": shape.head_dim,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": shape.rope_dim or shape.head_dim,
        "llama.rope.freq_base": 10000.0,
        "llama.rope.scaling.type": "linear",
        "llama.rope.scaling.factor": shape.rope_scale,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [f"<{token}>" for token in range(shape.vocab_size)],
        "tokenizer.ggml.token_type": np.ones(shape.vocab_size, np.int32),
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.eos_token_id": 0,
    }


def _tensors(shape: Shape, random: np.random.Generator) -> dict[str, WrittenTensor]:
    q_width, kv_width = shape.num_q_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    matrices = {
        "attn_q": (q_width, shape.hidden),
        "attn_k": (kv_width, shape.hidden),
        "attn_v": (kv_width, shape.hidden),
        "attn_output": (shape.hidden, q_width),
        "ffn_gate": (shape.intermediate, shape.hidden),
        "ffn_up": (shape.intermediate, shape.hidden),
        "ffn_down": (shape.hidden, shape.intermediate),
    }
    tensors = {"token_embd.weight": _matrix(random, shape, "embd", shape.vocab_size, shape.hidden)}
    for layer in range(shape.num_layers):
        prefix = f"blk.{layer}."
        for name, (rows, k) in matrices.items():
            short = name.rpartition("_")[2]
            tensors[f"{prefix}{name}.weight"] = _matrix(random, shape, short, rows, k)
            if short in shape.biases:
                tensors[f"{prefix}{name}.bias"] = _vector(random.normal(0, 0.5, rows))
        for name in ("attn_norm", "ffn_norm"):
            tensors[f"{prefix}{name}.weight"] = _vector(random.uniform(0.5, 1.5, shape.hidden))
    tensors["output_norm.weight"] = _vector(random.uniform(0.5, 1.5, shape.hidden))
    if not shape.tied:
        tensors["output.weight"] = _matrix(random, shape, "head", shape.vocab_size, shape.hidden)
    if shape.rope_factors:
        tensors["rope_freqs.weight"] = _vector(random.uniform(1, 8, (shape.rope_dim or shape.head_dim) // 2))
    return tensors


def _vector(values: npt.NDArray[np.float64]) -> WrittenTensor:
    return WrittenTensor(TYPES["F32"], values.shape, values.astype(np.float32).view(np.uint8).reshape(1, -1))


def _matrix(random: np.random.Generator, shape: Shape, name: str, rows: int, k: int) -> WrittenTensor:
    block = TYPES[shape.types.get(name, shape.type)]
    spread = 1.5 / k**0.5
    return WrittenTensor(block, (rows, k), _BLOCKS[block.name](random, block, rows, k, spread))


def _floats(random: np.random.Generator, block: BlockType, rows: int, k: int, spread: float) -> Blocks:
    values = random.normal(0, spread, (rows, k)).astype(np.float32)
    if block.name == "F32":
        return values.view(np.uint8)
    if block.name == "F16":
        return values.astype(np.float16).view(np.uint8)
    return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)


def _quantized(random: np.random.Generator, block: BlockType, rows: int, k: int, spread: float) -> Blocks:
    """Any bits are codes; the scales, first in a block, are drawn to give the spread."""
    blocks = random.integers(0, 256, (rows, k // 32, block.block_bytes), np.uint8)
    code_spread = 74.0 if block.name == "Q8_0" else 4.6
    scales = random.uniform(0.5, 1.4, blocks.shape[:2]) * spread / code_spread
    blocks[:, :, :2] = scales.astype(np.float16)[..., None].view(np.uint8)
    if block.name == "Q4_1":
        minima = scales * random.uniform(-9, -6, scales.shape)
        blocks[:, :, 2:4] = minima.astype(np.float16)[..., None].view(np.uint8)
    return blocks.reshape(rows, -1)


_BLOCKS: dict[str, Callable[[np.random.Generator, BlockType, int, int, float], Blocks]] = {
    "F32": _floats,
    "F16": _floats,
    "BF16": _floats,
    "Q8_0": _quantized,
    "Q4_0": _quantized,
    "Q4_1": _quantized,
}

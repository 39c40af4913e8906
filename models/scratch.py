"""Activations of one step: every buffer that the stages of a plan hand on to each other, for up to max_rows tokens.

Rows are padded to 64 elements with zeros that nobody writes. The engine's background thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from models.config import ModelConfig
from shaders.device import Buffer, Gpu
from shaders.ops.matmul import FoldedNorm, stride


@dataclass(frozen=True, slots=True, kw_only=True)
class Scratch:
    """[max_rows, stride(n)] f32 each; the folded norm is shared by all fused stages, since each is read at once."""

    x: Buffer
    normed: Buffer
    delta: Buffer
    q: Buffer
    k: Buffer
    v: Buffer
    attended: Buffer
    gate: Buffer
    up: Buffer
    folded: FoldedNorm


def scratch_row_bytes(config: ModelConfig) -> int:
    """Bytes that allocate_scratch takes for each row of a step."""
    q_width, kv_width = config.num_q_heads * config.head_dim, config.num_kv_heads * config.head_dim
    widths = [config.hidden] * 4 + [q_width, kv_width, kv_width, q_width, config.intermediate, config.intermediate]
    return 4 * sum(map(stride, widths)) + 16 * -(-config.hidden // 128)


def allocate_scratch(gpu: Gpu, config: ModelConfig, max_rows: int) -> Scratch:
    """Allocate for steps of up to max_rows tokens. Raises OutOfDeviceMemory."""

    def rows(name: str, elements: int) -> Buffer:
        return gpu.storage(name, 4 * max_rows * stride(elements))

    q_width = config.num_q_heads * config.head_dim
    kv_width = config.num_kv_heads * config.head_dim
    parts = -(-config.hidden // 128)  # vec4f of one partial sum per 32 rows
    return Scratch(
        x=rows("x", config.hidden),
        normed=rows("normed", config.hidden),
        delta=rows("delta", config.hidden),
        q=rows("q", q_width),
        k=rows("k", kv_width),
        v=rows("v", kv_width),
        attended=rows("attended", q_width),
        gate=rows("gate", config.intermediate),
        up=rows("up", config.intermediate),
        folded=FoldedNorm(
            x_gain=rows("x gain", config.hidden),
            partials=gpu.storage("partials", 16 * max_rows * parts),
            width=config.hidden,
            parts=parts,
            eps=config.norm_eps,
        ),
    )

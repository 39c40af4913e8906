"""Stages as the fused kernels run them: five dispatches for a Llama-shaped layer. Needs subgroups.

Owns the conditions under which a stage can be fused; models/plan.py decides stage by stage. Each builder leaves in
scratch.folded what a following fused stage needs. The engine's background thread, at load.
"""

from __future__ import annotations

from models.stage_context import StageContext
from models.stages import AttentionIn, AttentionOut, Linear, Mlp, Norm
from models.weights import Weights
from shaders.device import Buffer
from shaders.dispatch import Dispatch
from shaders.ops import elementwise, matmul
from shaders.ops.matmul import stride
from shaders.packing import GROUP_ROWS, TILE_ROWS


def embed(context: StageContext, weight: str, next_norm: Norm) -> list[Dispatch]:
    """x and the first norm's preparation, one dispatch per window of the vocabulary."""
    return elementwise.embed(
        context.matmul,
        context.weights.matrix(weight),
        context.scratch.x,
        last_tokens=context.last_tokens,
        folded=context.scratch.folded,
        gain=context.gain(next_norm.weight),
    )


def can_fuse_attention_in(weights: Weights, stage: AttentionIn) -> bool:
    """q, k and v stack into one matrix, or split at whole tiles; rotation pairs are adjacent rows."""
    parts = [stage.q, stage.k, stage.v]
    rows = [weights.rows(p.weight) for p in parts]
    same_type = len({weights.block_type(p.weight) for p in parts}) == 1
    unit = GROUP_ROWS if same_type else TILE_ROWS
    return stage.rope.pairing == "adjacent" and all(n % unit == 0 for n in rows)


def attention_in(context: StageContext, stage: AttentionIn, layer: int) -> list[Dispatch]:
    """Norm, q, k, v, rotation and page write: one dispatch where the three have one block type."""
    weights = context.weights
    parts = [stage.q, stage.k, stage.v]
    rows = tuple(weights.rows(p.weight) for p in parts)
    bias = None
    if any(p.bias is not None for p in parts):
        bias = weights.vector(*(p.bias for p in parts), sizes=rows, padded=stride(sum(rows)))
    found: list[Dispatch] = []
    first_tile = 0
    for names in _runs_of_one_type(weights, parts):
        matrix = weights.matrix(*names)
        found += matmul.qkv(
            context.matmul,
            matrix,
            context.scratch.folded,
            first_tile=first_tile,
            bias=bias,
            heads=context.heads,
            rope=context.rope,
            page_table=context.kv.page_table,
            q=context.scratch.q,
            keys=context.kv.keys[layer],
            values=context.kv.values[layer],
            kv_type=context.kv.kv_type,
        )
        first_tile += matrix.rows // TILE_ROWS
    return found


def attention_out(context: StageContext, stage: AttentionOut, next_norm: Norm) -> list[Dispatch]:
    """o, residual, and the next norm's preparation."""
    return _out(context, stage.o, context.scratch.attended, next_norm)


def can_fuse_mlp(weights: Weights, stage: Mlp) -> bool:
    """gate and up interleave: one type, no bias, whole groups of rows."""
    same_type = weights.block_type(stage.gate.weight) == weights.block_type(stage.up.weight)
    biased = stage.gate.bias is not None or stage.up.bias is not None
    return same_type and not biased and stage.activation == "silu" and weights.rows(stage.gate.weight) % GROUP_ROWS == 0


def mlp(context: StageContext, stage: Mlp, next_norm: Norm) -> list[Dispatch]:
    """Norm, gate, up and SwiGLU; then down, residual, and the next norm's preparation."""
    matrix = context.weights.matrix(stage.gate.weight, stage.up.weight, interleaved=True)
    found = matmul.gate_up(context.matmul, matrix, context.scratch.folded, context.scratch.up)
    return found + _out(context, stage.down, context.scratch.up, next_norm)


def head(context: StageContext, stage: Linear) -> list[Dispatch]:
    """The last norm and the logits of the step's samples."""
    matrix = context.weights.matrix(stage.weight)
    return matmul.head(context.matmul, matrix, context.scratch.folded, context.logits, y_stride=context.logits_stride)


def _out(context: StageContext, stage: Linear, x: Buffer, next_norm: Norm) -> list[Dispatch]:
    matrix = context.weights.matrix(stage.weight)
    bias = None
    if stage.bias is not None:
        bias = context.weights.vector(stage.bias, padded=stride(matrix.rows))
    return matmul.out(
        context.matmul,
        matrix,
        x,
        context.scratch.x,
        context.scratch.folded,
        gain=context.gain(next_norm.weight),
        bias=bias,
    )


def _runs_of_one_type(weights: Weights, parts: list[Linear]) -> list[list[str]]:
    runs: list[list[str]] = []
    for part in parts:
        if runs and weights.block_type(runs[-1][0]) == weights.block_type(part.weight):
            runs[-1].append(part.weight)
        else:
            runs.append([part.weight])
    return runs

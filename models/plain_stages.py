"""Stages as the plain kernels run them, one op a kernel: fallback without subgroups, reference, and the way in for
architectures that no fusion knows. Reads and leaves only the residual scratch.x. The engine's background thread, at
load.
"""

from __future__ import annotations

from models.stage_context import StageContext
from models.stages import AttentionIn, AttentionOut, Linear, Mlp, Norm
from shaders.device import Buffer
from shaders.dispatch import Dispatch
from shaders.ops import attention as attention_ops
from shaders.ops import elementwise, matmul
from shaders.ops.matmul import stride


def embed(context: StageContext, weight: str) -> list[Dispatch]:
    """x, one dispatch per window of the vocabulary."""
    matrix = context.weights.matrix(weight)
    return elementwise.embed(context.matmul, matrix, context.scratch.x, last_tokens=context.last_tokens)


def attention_in(context: StageContext, stage: AttentionIn, layer: int) -> list[Dispatch]:
    """Norm; q, k, v; rotation and page write."""
    config, scratch = context.config, context.scratch
    q_width = config.num_q_heads * config.head_dim
    kv_width = config.num_kv_heads * config.head_dim
    return [
        _norm(context, stage.norm),
        *_linear(context, stage.q, scratch.normed, scratch.q),
        *_linear(context, stage.k, scratch.normed, scratch.k),
        *_linear(context, stage.v, scratch.normed, scratch.v),
        attention_ops.rope_write(
            context.matmul.kernels,
            step=context.matmul.step,
            heads=context.heads,
            rope=context.rope,
            page_table=context.kv.page_table,
            q=scratch.q,
            k=scratch.k,
            v=scratch.v,
            keys=context.kv.keys[layer],
            values=context.kv.values[layer],
            pairs=q_width // 2 + kv_width,
            kv_type=context.kv.kv_type,
        ),
    ]


def attention_out(context: StageContext, stage: AttentionOut) -> list[Dispatch]:
    """o and the residual."""
    return _out(context, stage.o, context.scratch.attended)


def mlp(context: StageContext, stage: Mlp) -> list[Dispatch]:
    """Norm; gate, up; SwiGLU; down and the residual."""
    scratch = context.scratch
    return [
        _norm(context, stage.norm),
        *_linear(context, stage.gate, scratch.normed, scratch.gate),
        *_linear(context, stage.up, scratch.normed, scratch.up),
        elementwise.silu_mul(context.matmul, scratch.gate, scratch.up, width=context.config.intermediate),
        *_out(context, stage.down, scratch.up),
    ]


def head(context: StageContext, norm: Norm, stage: Linear) -> list[Dispatch]:
    """The last norm and the logits of the step's samples."""
    matrix = context.weights.matrix(stage.weight)
    found = matmul.linear(
        context.matmul,
        matrix,
        context.scratch.normed,
        context.logits,
        bias=_bias(context, stage, matrix.rows),
        y_stride=context.logits_stride,
        sampled=True,
    )
    return [_norm(context, norm), *found]


def _norm(context: StageContext, norm: Norm) -> Dispatch:
    return elementwise.rms_norm(
        context.matmul,
        context.scratch.x,
        context.scratch.normed,
        gain=context.gain(norm.weight),
        width=context.config.hidden,
        eps=norm.eps,
    )


def _out(context: StageContext, stage: Linear, x: Buffer) -> list[Dispatch]:
    delta = context.scratch.delta
    return [
        *_linear(context, stage, x, delta),
        elementwise.add(context.matmul, delta, context.scratch.x, width=context.config.hidden),
    ]


def _linear(context: StageContext, stage: Linear, x: Buffer, y: Buffer) -> list[Dispatch]:
    matrix = context.weights.matrix(stage.weight)
    bias = _bias(context, stage, matrix.rows)
    return matmul.linear(context.matmul, matrix, x, y, bias=bias, y_stride=stride(matrix.rows))


def _bias(context: StageContext, stage: Linear, rows: int) -> Buffer | None:
    return None if stage.bias is None else context.weights.vector(stage.bias, padded=stride(rows))

"""The planner: folds what a model is (models/stages.py) into the kernels that run it, each stage fused or plain.

The choice is made once, at load: a plan is a list of dispatches with everything bound, which a step only replays.
Knows which fusions exist; not requests, pages' owners or the device's name. The engine's background thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from models import fused_stages, plain_stages
from models.errors import UnsupportedArchitecture
from models.stage_context import StageContext
from models.stages import Layer, Model, Norm
from shaders.dispatch import Dispatch
from shaders.ops import attention as attention_ops
from shaders.ops import elementwise
from shaders.traits import KernelSet

MAX_HEAD_DIM = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Dispatches in order: embed, then layers, then head for steps that sample. `fused` counts fused stages."""

    embed: tuple[Dispatch, ...]
    layers: tuple[Dispatch, ...]
    head: tuple[Dispatch, ...]
    fused: int
    plain: int


def make_plan(
    model: Model, context: StageContext, kernel_set: KernelSet, layer_done: Callable[[int], None] = lambda layer: None
) -> Plan:
    """Plan a model and upload its weights on the way; `layer_done(i)` hears of each layer.

    Raises UnsupportedArchitecture for shapes that no kernel takes, and what the shader layer raises.
    """
    _check(model)
    planner = _Planner(model, context, fuse=kernel_set == "fused")
    first_norm = model.layers[0].attention_in.norm if model.layers else model.final_norm
    embed = planner.embed(first_norm)
    layers: list[Dispatch] = []
    for index, layer in enumerate(model.layers):
        last = index + 1 == len(model.layers)
        next_norm = model.final_norm if last else model.layers[index + 1].attention_in.norm
        layers += planner.layer(layer, index, next_norm)
        layer_done(index)
    head = planner.head()
    return Plan(embed=tuple(embed), layers=tuple(layers), head=tuple(head), fused=planner.fused, plain=planner.plain)


class _Planner:
    """Walks the stages; `prepared` says whether scratch.folded holds what a fused stage needs of the residual."""

    def __init__(self, model: Model, context: StageContext, *, fuse: bool) -> None:
        self.model = model
        self.context = context
        self.fuse = fuse
        self.prepared = False
        self.fused = 0
        self.plain = 0

    def embed(self, next_norm: Norm) -> list[Dispatch]:
        if self._choose(True):
            self.prepared = True
            return fused_stages.embed(self.context, self.model.embed, next_norm)
        return plain_stages.embed(self.context, self.model.embed)

    def layer(self, layer: Layer, index: int, next_norm: Norm) -> list[Dispatch]:
        context, weights = self.context, self.context.weights
        found: list[Dispatch] = []
        if self._choose(fused_stages.can_fuse_attention_in(weights, layer.attention_in)):
            found += self._prepare(layer.attention_in.norm)
            found += fused_stages.attention_in(context, layer.attention_in, index)
        else:
            found += plain_stages.attention_in(context, layer.attention_in, index)
        found.append(self._attention(index))
        if self._choose(True):
            found += fused_stages.attention_out(context, layer.attention_out, layer.mlp.norm)
            self.prepared = True
        else:
            found += plain_stages.attention_out(context, layer.attention_out)
            self.prepared = False
        if self._choose(fused_stages.can_fuse_mlp(weights, layer.mlp)):
            found += self._prepare(layer.mlp.norm)
            found += fused_stages.mlp(context, layer.mlp, next_norm)
            self.prepared = True
        else:
            found += plain_stages.mlp(context, layer.mlp)
            self.prepared = False
        return found

    def head(self) -> list[Dispatch]:
        if self._choose(self.model.head.bias is None):
            return self._prepare(self.model.final_norm) + fused_stages.head(self.context, self.model.head)
        return plain_stages.head(self.context, self.model.final_norm, self.model.head)

    def _choose(self, possible: bool) -> bool:
        fused = self.fuse and possible
        self.fused += fused
        self.plain += not fused
        return fused

    def _prepare(self, norm: Norm) -> list[Dispatch]:
        if self.prepared:
            return []
        context = self.context
        return [
            elementwise.norm_prepare(
                context.matmul, context.scratch.x, context.scratch.folded, gain=context.gain(norm.weight)
            )
        ]

    def _attention(self, layer: int) -> Dispatch:
        context, config = self.context, self.context.config
        return attention_ops.attention(
            context.matmul.kernels,
            step=context.matmul.step,
            heads=context.heads,
            page_table=context.kv.page_table,
            q=context.scratch.q,
            keys=context.kv.keys[layer],
            values=context.kv.values[layer],
            y=context.scratch.attended,
            num_q_heads=config.num_q_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            kv_type=context.kv.kv_type,
            subgroups=self.fuse,
            windowed=context.windowed,
        )


def _check(model: Model) -> None:
    """The shapes that every kernel counts on."""
    config = model.config
    if config.head_dim % 8 or config.head_dim > MAX_HEAD_DIM:
        raise UnsupportedArchitecture(
            f"This model has heads of {config.head_dim} elements. Inglenook runs multiples of 8 up to {MAX_HEAD_DIM}."
        )
    for layer in model.layers:
        if layer.attention_in.rope.pairing != "adjacent":
            raise UnsupportedArchitecture("This model rotates halves of a head. Inglenook runs adjacent pairs so far.")

"""Puts a described model on a device: pages, scratch, plan, draw stage, runner.

Owns the sizes of what is allocated once per model. Knows no requests. The engine's background thread, at load.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from models.draw_stage import DrawStage, StepBuffers
from models.gguf import GgufFile
from models.kv_pages import KvType, allocate_pages
from models.page_moves import PageMover
from models.plan import make_plan
from models.rope import rope_table
from models.runner import Runner
from models.scratch import allocate_scratch
from models.stage_context import StageContext
from models.stages import Model
from models.weights import Weights
from shaders.device import Buffer, Gpu
from shaders.dispatch import Constants
from shaders.kernel import KernelCache
from shaders.ops.attention import quads
from shaders.ops.matmul import MatmulContext, stride
from shaders.step_table import StepTable
from shaders.traits import KernelSet


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """Sizes and choices, all of them made. depth: steps in flight; clusters as shaders/traits.py has it.

    max_moved_pages: that one step loads or saves. window and sinks: which tokens a position attends to, as
    shaders/wgsl/common/heads.wgsl has it; 0 for all.
    """

    kernel_set: KernelSet
    clusters: int
    kv_type: KvType
    context: int
    num_pages: int
    max_rows: int
    max_samples: int
    max_slots: int
    max_moved_pages: int
    depth: int
    window: int
    sinks: int


def build_runner(
    gguf: GgufFile,
    model: Model,
    gpu: Gpu,
    kernels: KernelCache,
    options: BuildOptions,
    moved: Callable[[int], None],
) -> Runner:
    """Allocate, upload, plan. `moved(n)` hears of every n bytes of weights and may raise to stop.

    Raises what models and shaders raise; the caller closes the device then.
    """
    config = model.config
    table = StepTable(options.max_rows, options.max_samples)
    weights = Weights(gguf, gpu, kernels, moved)
    constants = Constants(gpu)
    logits_stride = stride(config.vocab_size)
    kv = allocate_pages(
        gpu,
        config,
        kv_type=options.kv_type,
        num_pages=options.num_pages,
        num_slots=options.max_slots,
        context=options.context,
    )
    step = gpu.storage("step", table.data.nbytes)
    buffers = StepBuffers(
        step=step,
        tokens=gpu.storage("tokens", 4 * options.max_samples),
        last_tokens=gpu.storage("last tokens", 4 * options.max_slots),
        logits=gpu.storage("logits", 4 * options.max_samples * logits_stride),
        logits_stride=logits_stride,
        vocab_size=config.vocab_size,
        max_samples=options.max_samples,
        max_slots=options.max_slots,
    )
    context = StageContext(
        config=config,
        matmul=MatmulContext(
            kernels=kernels,
            constants=constants,
            step=step,
            empty=gpu.storage("empty", 16),
            clusters=options.clusters,
        ),
        weights=weights,
        scratch=allocate_scratch(gpu, config, options.max_rows),
        kv=kv,
        heads=constants.heads(
            head_dim=config.head_dim,
            num_q_heads=config.num_q_heads,
            num_kv_heads=config.num_kv_heads,
            rope_dim=config.rope_dim,
            table_stride=kv.table_stride,
            q_stride=stride(config.num_q_heads * config.head_dim),
            quads=quads(config.num_q_heads, config.num_kv_heads),
            scale=model.layers[0].attention.scale,
            window=options.window,
            sinks=options.sinks,
        ),
        rope=_rope(gpu, model, weights, options.context),
        windowed=options.window > 0,
        last_tokens=buffers.last_tokens,
        logits=buffers.logits,
        logits_stride=logits_stride,
    )
    plan = make_plan(model, context, options.kernel_set)
    weights.finish()
    draw = DrawStage(gpu, kernels, buffers)
    mover = PageMover(gpu, kernels, kv, options.max_moved_pages)
    return Runner(gpu, plan, draw, kv, mover, buffers, table, options.depth)


def _rope(gpu: Gpu, model: Model, weights: Weights, positions: int) -> Buffer:
    rope = model.layers[0].attention_in.rope
    factors = None if rope.freq_factors is None else weights.values(rope.freq_factors)
    return gpu.upload("rope", rope_table(rope, factors, positions))

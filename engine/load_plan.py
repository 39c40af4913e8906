"""What a load will take, worked out before anything is allocated: limits that fit, and an estimate in bytes.

Brings together what the user said, what the file says of the model, and what the device has. Loads nothing. The
engine's background thread, or any thread that merely wants to know.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engine.config import DeviceFacts, EngineConfig, Estimate, ModelFacts, check_context, resolve
from engine.errors import DeviceFailed
from engine.function_table import MAX_IN_FLIGHT, TableLimits
from engine.loading import LoadOptions
from models.architectures import describe
from models.footprint import footprint
from models.gguf import GgufFile, open_gguf
from models.stages import Model
from shaders.device import Gpu, open_gpu
from shaders.errors import ShaderError
from shaders.memory import memory_budget


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """Everything decided about a load."""

    path: Path
    config: EngineConfig
    device: DeviceFacts
    limits: TableLimits
    estimate: Estimate


def plan_load(options: LoadOptions, gguf: GgufFile, model: Model, gpu: Gpu) -> LoadPlan:
    """Decide what the options leave open. Raises ModelNotLoaded, saying what would fit, where it cannot be."""
    config = _config(options)
    device = _device_facts(options, gpu)
    limits, estimate = resolve(config, _model_facts(options, gguf, model, device.max_binding_bytes), device)
    return LoadPlan(path=options.model, config=config, device=device, limits=limits, estimate=estimate)


def estimate_load(options: LoadOptions) -> LoadPlan:
    """The plan of a load that is not made. Raises what a load would: ModelError, ModelNotLoaded, DeviceFailed."""
    with open_gguf(options.model) as gguf:
        model = describe(gguf)
        check_context(options.context, model.config.context_length)
        try:
            gpu = open_gpu(options.adapter)
            try:
                return plan_load(options, gguf, model, gpu)
            finally:
                gpu.close()
        except ShaderError as error:
            raise DeviceFailed(str(error)) from error


def _config(options: LoadOptions) -> EngineConfig:
    return EngineConfig(
        mode=options.mode,
        context=options.context,
        total_tokens=options.total_tokens,
        max_sequences=options.max_sequences,
        memory_bytes=options.memory_bytes,
        window=options.window,
        sinks=options.sinks,
    )


def _model_facts(options: LoadOptions, gguf: GgufFile, model: Model, max_binding_bytes: int) -> ModelFacts:
    taken = footprint(gguf, model, kv_type=options.kv_type, depth=MAX_IN_FLIGHT, max_binding_bytes=max_binding_bytes)
    return ModelFacts(
        vocab_size=model.config.vocab_size,
        trained_context=model.config.context_length,
        weight_bytes=taken.weights,
        page_bytes=taken.page,
        layer_page_bytes=taken.layer_page,
        row_bytes=taken.row,
        sample_bytes=taken.sample,
        logits_bytes=taken.logits,
        slot_bytes=taken.slot,
        position_bytes=taken.position,
        trained_window=model.config.sliding_window,
    )


def _device_facts(options: LoadOptions, gpu: Gpu) -> DeviceFacts:
    if options.memory_bytes is not None:
        return DeviceFacts(options.memory_bytes, gpu.max_binding_bytes, "as you said")
    budget = memory_budget(gpu.adapter)
    return DeviceFacts(budget.bytes, gpu.max_binding_bytes, budget.source)

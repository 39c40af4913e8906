"""Loads a model: file, device, plan, weights, warm kernels. The real engine.loading.Loader.

Owns the order of things and what is freed where one of them fails. Runs on the engine's background thread.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from pathlib import Path

from engine.config import check_context, in_words, smaller_pools
from engine.errors import DeviceFailed, ModelNotLoaded, OutOfMemory
from engine.function_table import MAX_MOVED_PAGES, Row, Sample, TableLimits
from engine.gpu_table import GpuTable
from engine.load_plan import LoadPlan, plan_load
from engine.loading import LoadCancelled, LoadedModel, LoadOptions, LoadProgress
from engine.model_identity import ModelIdentity
from engine.request import GREEDY
from engine.trace import OFF, Trace
from models.architectures import describe
from models.chat_template import ChatTemplate
from models.gguf import GgufFile, open_gguf
from models.model_build import BuildOptions, build_runner
from models.stages import Model
from models.tokenizer import Tokenizer
from shaders.device import Gpu, open_gpu
from shaders.errors import OutOfDeviceMemory, ShaderError
from shaders.kernel import KernelCache
from shaders.traits import Traits, probe

logger = logging.getLogger(__name__)


def load_model(
    options: LoadOptions,
    progress: Callable[[LoadProgress], None],
    cancelled: Callable[[], bool],
    trace: Trace = OFF,
) -> LoadedModel:
    """See engine.loading.Loader. A trace that records gets the device's own times too."""
    started = time.perf_counter()
    progress(LoadProgress(stage="Reading", done_bytes=0, total_bytes=0))
    # The identity begins first: whoever replaces the file in between changes it under the identity, not behind it.
    with ModelIdentity(options.model, options.tiers) as identity, open_gguf(options.model) as gguf:
        model = describe(gguf)
        tokenizer = Tokenizer.from_metadata(gguf.metadata)
        template = ChatTemplate.from_metadata(gguf.metadata, tokenizer)
        check_context(options.context, model.config.context_length)
        total = sum(t.data.nbytes for t in gguf.tensors.values())
        try:
            gpu, table, traits = _build_what_fits(options, gguf, model, total, progress, cancelled)
        except ShaderError as error:
            raise DeviceFailed(str(error)) from error
        limits = table.limits
        window = (f"window {limits.window}", f"sinks {limits.sinks}") if limits.window else ()
        fingerprint = identity.fingerprint(gpu.adapter, traits, options.kv_type, window)
    if trace.enabled:
        table.time_steps(trace.gpu_span)
    return LoadedModel(
        name=display_name(options.model),
        path=options.model,
        quantization=model.config.file_type,
        adapter=gpu.adapter.name,
        software_adapter=gpu.adapter.software,
        context_length=table.limits.context_length,
        load_s=time.perf_counter() - started,
        weight_bytes=total,
        tokenizer=tokenizer,
        chat_template=template,
        table=table,
        fingerprint=fingerprint,
    )


def display_name(path: Path) -> str:
    """What people call a model: its file's name without quantization and split numbers, in words."""
    stem = re.sub(r"-\d{5}-of-\d{5}$", "", path.stem)
    stem = re.sub(r"[.\-_](I?Q\d\w*|B?F16|F32)$", "", stem, flags=re.IGNORECASE)
    return re.sub(r"[-_ ]+", " ", stem).strip() or path.name


def _build_what_fits(
    options: LoadOptions,
    gguf: GgufFile,
    model: Model,
    total: int,
    progress: Callable[[LoadProgress], None],
    cancelled: Callable[[], bool],
) -> tuple[Gpu, GpuTable, Traits]:
    """A model on a device of its own. Where that refuses what should have fitted, pages for the cache go first."""
    gpu = open_gpu(options.adapter)
    try:
        plan = plan_load(options, gguf, model, gpu)
        tries = [(plan.limits, plan.estimate), *smaller_pools(plan.config, plan.limits, plan.estimate)]
        for limits, estimate in tries:
            progress(LoadProgress(stage="Reading", done_bytes=0, total_bytes=total, estimate=estimate))
            try:
                return gpu, *_build(options, gguf, model, gpu, limits, total, progress, cancelled)
            except (OutOfDeviceMemory, OutOfMemory) as error:
                logger.warning("No room for %d pages: %s", limits.num_pages, error)
                gpu.close()
                gpu = open_gpu(options.adapter)
        raise ModelNotLoaded(_refused(plan))
    except BaseException:
        gpu.close()
        raise


def _refused(plan: LoadPlan) -> str:
    estimate, context = plan.estimate, plan.limits.context_length
    sentence = (
        f"The graphics device has no room for {in_words(estimate.total)}, of which this model takes "
        f"{in_words(estimate.weights)} and {estimate.tokens:,} tokens {in_words(estimate.context)}, "
        f"though {in_words(plan.device.budget_bytes)} should be free ({plan.device.source})."
    )
    return f"{sentence} Close other programs that use it, or load the model with a context of {context // 2:,} or less."


def _build(
    options: LoadOptions,
    gguf: GgufFile,
    model: Model,
    gpu: Gpu,
    limits: TableLimits,
    total: int,
    progress: Callable[[LoadProgress], None],
    cancelled: Callable[[], bool],
) -> tuple[GpuTable, Traits]:
    done = 0

    def moved(count: int) -> None:
        nonlocal done
        done += count
        if cancelled():
            raise LoadCancelled
        progress(LoadProgress(stage="Loading weights", done_bytes=min(done, total), total_bytes=total))

    traits = choose_kernels(probe(gpu), options)
    build = BuildOptions(
        kernel_set=traits.kernel_set,
        clusters=traits.clusters,
        kv_type=options.kv_type,
        context=limits.context_length,
        num_pages=limits.num_pages,
        max_rows=limits.max_rows,
        max_samples=limits.max_samples,
        max_slots=limits.max_slots,
        max_moved_pages=MAX_MOVED_PAGES,
        depth=limits.max_in_flight,
        window=limits.window,
        sinks=limits.sinks,
    )
    runner = build_runner(gguf, model, gpu, KernelCache(gpu), build, moved)
    table = GpuTable(runner, limits, gpu.close)
    progress(LoadProgress(stage="Preparing kernels", done_bytes=total, total_bytes=total))
    _warm(table, cancelled)
    return table, traits


def choose_kernels(traits: Traits, options: LoadOptions) -> Traits:
    """The probed set, or the one that a developer asked for. Raises DeviceFailed where it cannot run."""
    if options.kernels is None or options.kernels == traits.kernel_set:
        return traits
    if options.kernels == "fused":
        raise DeviceFailed(f"The fused kernels cannot run here: {traits.reason}. Leave the choice to Inglenook.")
    return Traits(traits.subgroup_size, "plain", traits.clusters, "asked for")


def _warm(table: GpuTable, cancelled: Callable[[], bool]) -> None:
    """Run every kernel variant once, since drivers compile at the first dispatch: one token, a tile, a page's way out
    and back."""
    table.set_pages(0, 0, [0])
    for count in (1, 2):
        if cancelled():
            raise LoadCancelled
        table.begin_forward()
        table.embed([Row(0, position, 0) for position in range(count)])
        table.prefill()
        table.logits(range(count))
        table.sample([Sample(row, 0, row + 1, GREEDY) for row in range(count)])
        table.end_forward()
        table.retire(wait=True)
    if cancelled():
        raise LoadCancelled
    table.begin_forward()
    table.save_pages([0])
    table.end_forward()
    saved = table.retire(wait=True)
    assert saved is not None, "a submitted step retires"
    table.begin_forward()
    table.load_pages([0], saved.pages)
    table.end_forward()
    table.retire(wait=True)

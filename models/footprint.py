"""How many bytes of a device a model takes, told from its file before anything is allocated.

Follows what model_build.py, weights.py, draw_stage.py and runner.py allocate; a test holds the sums against a device's
own count. Knows sizes, not budgets. Any thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from models.gguf import GgufFile
from models.kv_pages import KvType, layer_page_bytes
from models.scratch import scratch_row_bytes
from models.stages import Layer, Linear, Model
from shaders.arena import arena_bytes
from shaders.logit_table import sample_words
from shaders.ops.logits import RECORD_BYTES
from shaders.ops.matmul import stride
from shaders.packing import ARENA_BYTES, STAGING_BYTES, matrix_bytes
from shaders.step_table import ROW_BYTES, SAMPLE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Bytes, by what they grow with.

    weights: packed, with what their arenas leave empty and the staging window. page: one page, in every layer;
    layer_page: its keys in one layer. row: activations per row of a step. sample: all that is kept per drawn token of a
    step, the buffers that penalties, bias and logprobs take when first asked for among it; logits: one row of logits.
    slot: per sequence on the device. position: per token of context, of the table of rotations.
    """

    weights: int
    page: int
    layer_page: int
    row: int
    sample: int
    logits: int
    slot: int
    position: int


def footprint(gguf: GgufFile, model: Model, *, kv_type: KvType, depth: int, max_binding_bytes: int) -> Footprint:
    """What the model takes with `depth` steps in flight. Raises TensorMismatch where the file lacks a tensor."""
    config = model.config
    layer_page = layer_page_bytes(config, kv_type)
    logits = 4 * stride(config.vocab_size)
    sizes = _Sizes(gguf, max_binding_bytes)
    rope_dim = model.layers[0].attention_in.rope.dim if model.layers else 0
    return Footprint(
        weights=max(arena_bytes(sizes.of(model, stacked=stacked), ARENA_BYTES) for stacked in (True, False))
        + STAGING_BYTES,
        page=2 * config.num_layers * layer_page,
        layer_page=layer_page,
        row=scratch_row_bytes(config) + ROW_BYTES,
        sample=2 * logits + 4 * sample_words(config.vocab_size) + (1 + depth) * (4 + RECORD_BYTES) + SAMPLE_BYTES,
        logits=logits,
        slot=logits + 4,
        position=4 * rope_dim,
    )


class _Sizes:
    """Parts of the weights' arena, in the planner's order. Fused kernels stack some matrices, plain ones none."""

    def __init__(self, gguf: GgufFile, max_binding_bytes: int) -> None:
        self._gguf = gguf
        self._max_binding_bytes = max_binding_bytes

    def of(self, model: Model, *, stacked: bool) -> Iterator[int]:
        yield from self._matrix(model.embed)
        for layer in model.layers:
            yield from self._layer(layer, stacked)
        yield from self._vector(model.final_norm.weight)
        if model.head.weight != model.embed:
            yield from self._linears([model.head], stacked)

    def _layer(self, layer: Layer, stacked: bool) -> Iterator[int]:
        attention, mlp = layer.attention_in, layer.mlp
        yield from self._vector(attention.norm.weight)
        yield from self._linears([attention.q, attention.k, attention.v], stacked)
        yield from self._linears([layer.attention_out.o], stacked)
        yield from self._vector(mlp.norm.weight)
        yield from self._linears([mlp.gate, mlp.up], stacked)
        yield from self._linears([mlp.down], stacked)

    def _linears(self, linears: Sequence[Linear], stacked: bool) -> Iterator[int]:
        names = [linear.weight for linear in linears]
        types = {self._gguf.tensors[name].block_type.name for name in names if name in self._gguf.tensors}
        for group in [names] if stacked and len(types) == 1 else [[name] for name in names]:
            yield from self._matrix(*group)
        for linear in linears:
            if linear.bias is not None:
                yield from self._vector(linear.bias)

    def _matrix(self, *names: str) -> Iterator[int]:
        tensors = [self._gguf.tensors[name] for name in names]
        rows = sum(tensor.shape[0] for tensor in tensors)
        yield from matrix_bytes(tensors[0].block_type, rows, tensors[0].shape[1], self._max_binding_bytes)

    def _vector(self, name: str) -> Iterator[int]:
        yield 4 * stride(self._gguf.tensors[name].shape[0])

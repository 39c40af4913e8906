"""Llama files described: sizes, optional parts, refusals; and the description, computed in numpy, against goldens."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from models.architectures import describe
from models.blocks import BLOCK_TYPES
from models.errors import CorruptFile, ModelError, TensorMismatch, UnsupportedArchitecture
from models.gguf import GgufFile, MetadataValue, TensorInfo, open_gguf
from tests.numpy_model import NumpyModel

DATA = Path(__file__).parents[1] / "data"
CONTROL = DATA / "gguf_broken" / "valid_control.gguf"
TINY = DATA / "gguf_llama"
F32 = BLOCK_TYPES[0]


def changed(
    metadata: dict[str, MetadataValue | None] | None = None, tensors: dict[str, tuple[int, ...] | None] | None = None
) -> GgufFile:
    """The control file with entries and F32 tensors replaced, added or (None) taken away."""
    with open_gguf(CONTROL) as gguf:
        entries, weights = dict(gguf.metadata), dict(gguf.tensors)
    for key, value in (metadata or {}).items():
        entries.pop(key, None)
        if value is not None:
            entries[key] = value
    for name, shape in (tensors or {}).items():
        weights.pop(name, None)
        if shape is not None:
            weights[name] = TensorInfo(name, F32, shape, np.zeros(4 * math.prod(shape), np.uint8))
    return GgufFile(CONTROL, entries, weights, ())


def test_control_sizes() -> None:
    config = describe(changed()).config
    assert (config.vocab_size, config.hidden, config.num_layers, config.intermediate) == (40, 8, 1, 32)
    assert (config.num_q_heads, config.num_kv_heads, config.head_dim, config.rope_dim) == (2, 2, 4, 4)
    assert (config.rope_scale, config.file_type, config.architecture) == (1.0, "F32", "llama")


def test_untied_head_and_tied_head() -> None:
    tied = describe(changed(tensors={"output.weight": None}))
    assert tied.head.weight == tied.embed == "token_embd.weight"
    untied = describe(changed(tensors={"output.weight": (40, 8)}))
    assert untied.head.weight == "output.weight"


def test_biases_and_frequency_factors() -> None:
    model = describe(
        changed(tensors={"blk.0.attn_q.bias": (8,), "blk.0.attn_output.bias": (8,), "rope_freqs.weight": (2,)})
    )
    layer = model.layers[0]
    assert layer.attention_in.q.bias == "blk.0.attn_q.bias"
    assert layer.attention_in.k.bias is None
    assert layer.attention_out.o.bias == "blk.0.attn_output.bias"
    assert layer.attention_in.rope.freq_factors == "rope_freqs.weight"
    assert layer.attention_in.rope.pairing == "adjacent"


def test_head_size_of_its_own() -> None:
    wide = {"blk.0.attn_q.weight": (32, 8), "blk.0.attn_k.weight": (16, 8), "blk.0.attn_v.weight": (16, 8)}
    model = describe(
        changed(
            {
                "llama.attention.key_length": 16,
                "llama.attention.value_length": 16,
                "llama.attention.head_count_kv": 1,
                "llama.rope.dimension_count": 8,
            },
            {**wide, "blk.0.attn_output.weight": (8, 32)},
        )
    )
    assert (model.config.head_dim, model.config.num_kv_heads, model.config.rope_dim) == (16, 1, 8)
    assert model.layers[0].attention.scale == 0.25


@pytest.mark.parametrize(
    "entries, scale",
    [
        ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}, 4.0),
        ({"llama.rope.scaling.factor": 2.0}, 2.0),
        ({"llama.rope.scale_linear": 8.0}, 8.0),
        ({"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 4.0}, 1.0),
        ({"llama.rope.scaling.factor": 0.0}, 1.0),
    ],
)
def test_linear_rope_scaling(entries: dict[str, MetadataValue | None], scale: float) -> None:
    model = describe(changed(entries))
    assert model.config.rope_scale == model.layers[0].attention_in.rope.scale == scale


@pytest.mark.parametrize("entries, window", [({}, 0), ({"sliding_window": 0}, 0), ({"sliding_window": 4096}, 4096)])
def test_sliding_window(entries: dict[str, int], window: int) -> None:
    model = describe(changed({f"llama.attention.{key}": value for key, value in entries.items()}))
    assert model.config.sliding_window == window


@pytest.mark.parametrize(
    "entries, says",
    [
        ({"general.architecture": "rwkv7"}, 'This file holds a "rwkv7" model. Inglenook can\'t run that kind yet.'),
        ({"general.type": "adapter"}, '"adapter"'),
        ({"llama.expert_count": 8}, '"llama.expert_count"'),
        ({"llama.rope.scaling.type": "yarn"}, '"llama.rope.scaling.type" "yarn"'),
        ({"llama.attention.causal": False}, '"llama.attention.causal"'),
        ({"llama.attention.value_length": 8}, '"llama.attention.value_length"'),
        ({"llama.logit_scale": 0.5}, '"llama.logit_scale"'),
        ({"tokenizer.ggml.model": "bert"}, '"bert"'),
    ],
)
def test_what_is_not_honoured_is_refused(entries: dict[str, MetadataValue | None], says: str) -> None:
    with pytest.raises(UnsupportedArchitecture) as caught:
        describe(changed(entries))
    assert says in str(caught.value)


def test_settings_that_are_off_do_not_matter() -> None:
    describe(changed({"llama.expert_count": 0, "llama.attention.sliding_window": 0, "llama.attention.causal": True}))


@pytest.mark.parametrize(
    "entries",
    [
        {"llama.attention.head_count": 0},
        {"llama.attention.head_count": -1},
        {"llama.attention.head_count": np.array([2], np.uint32)},
        {"llama.attention.value_length": np.array([2, 2], np.uint32)},
        {"llama.attention.head_count_kv": 3},
        {"llama.attention.layer_norm_rms_epsilon": math.nan},
        {"llama.rope.freq_base": math.inf},
        {"llama.rope.scaling.factor": -2.0},
        {"llama.rope.dimension_count": 3},
        {"llama.rope.dimension_count": 6},
        {"llama.context_length": 0},
        {"llama.attention.sliding_window": -1},
        {"llama.context_length": 2**40},
        {"llama.embedding_length": None},
        {"tokenizer.ggml.eos_token_id": 40},
        {"tokenizer.ggml.token_type": "none"},
        {"tokenizer.ggml.merges": ["nospace"]},
        {"tokenizer.ggml.tokens": None},
    ],
)
def test_contradictions_are_refused(entries: dict[str, MetadataValue | None]) -> None:
    with pytest.raises(CorruptFile):
        describe(changed(entries))


@pytest.mark.parametrize(
    "tensors, error",
    [
        ({"output_norm.weight": None}, TensorMismatch),
        ({"token_embd.weight": None}, TensorMismatch),
        ({"token_embd.weight": (41, 8)}, TensorMismatch),
        ({"blk.0.attn_k.bias": (7,)}, TensorMismatch),
        ({"blk.0.attn_q_norm.weight": (4,)}, UnsupportedArchitecture),
        ({"rope_freqs.weight": (3,)}, TensorMismatch),
    ],
)
def test_weights_that_do_not_fit(tensors: dict[str, tuple[int, ...] | None], error: type[ModelError]) -> None:
    with pytest.raises(error) as caught:
        describe(changed(tensors=tensors))
    if error is UnsupportedArchitecture or None in tensors.values():
        assert next(iter(tensors)) in str(caught.value)


def test_names_are_tidied() -> None:
    assert describe(changed({"general.name": " A\nmodel\x1b "})).config.name == "A model"
    assert describe(changed({"general.name": None})).config.name == "valid_control"


# The description, computed


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0"])
def test_description_computes_the_golden_logits(kind: str) -> None:
    golden = json.loads((TINY / "golden.json").read_text())["files"][kind]
    expected = load_file(TINY / f"tiny-{kind}.golden.safetensors")
    with open_gguf(TINY / f"tiny-{kind}.gguf") as gguf:
        assert {name: tensor.block_type.name for name, tensor in gguf.tensors.items()} == golden["tensor_types"]
        model = NumpyModel(gguf)
        assert model.model.config.file_type == kind
        for sequence in golden["sequences"]:
            logits = model.logits(sequence["ids"])[sequence["positions"]]
            np.testing.assert_allclose(logits, expected[f"{sequence['name']}.logits_f32dequant"], atol=2e-4, rtol=0)

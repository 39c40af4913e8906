"""Llama, and the many models published in its shape: RMSNorm, grouped-query attention with rotary positions, SwiGLU.

Every layer: x += o(attention(norm(x))), then x += mlp(norm(x)). GGUF stores this architecture's q and k rows so that
rotary pairs are adjacent elements. Does not know kernels. Called by the thread that opens the model.

Source: Touvron et al. 2023, arXiv:2302.13971; frequency factors: Llama Team 2024, arXiv:2407.21783
"""

import math

from models.architectures.hparams import Hparams
from models.architectures.weights import Weights
from models.config import ModelConfig
from models.errors import TensorMismatch
from models.gguf import GgufFile
from models.stages import Attention, AttentionIn, AttentionOut, Layer, Linear, Mlp, Model, Norm, Rope

_TENSORS_PER_LAYER = 9


def describe(gguf: GgufFile) -> Model:
    """Raises UnsupportedArchitecture, TensorMismatch and CorruptFile; see models.architectures.describe."""
    weights = Weights(gguf)
    config = _config(gguf, weights)
    embed = weights.need("token_embd.weight", config.vocab_size, config.hidden)
    layers = tuple(_layer(config, weights, f"blk.{index}.") for index in range(config.num_layers))
    head = weights.maybe("output.weight", config.vocab_size, config.hidden)
    model = Model(
        config=config,
        embed=embed,
        layers=layers,
        final_norm=_norm(config, weights, "output_norm.weight"),
        head=Linear(weight=head or embed),
    )
    weights.refuse_leftovers()
    return model


def _config(gguf: GgufFile, weights: Weights) -> ModelConfig:
    hparams = Hparams(gguf, "llama")
    hidden = hparams.count("embedding_length")
    num_layers = hparams.count("block_count")
    if num_layers * _TENSORS_PER_LAYER > len(gguf.tensors):  # before anything is built per layer
        raise TensorMismatch(
            f"{gguf.path.name} says that it has {num_layers:,} layers but holds only {len(gguf.tensors):,} tensors. "
            "Download it again."
        )
    num_q_heads = hparams.count("attention.head_count")
    num_kv_heads = hparams.count("attention.head_count_kv", num_q_heads)
    hparams.must_divide(num_kv_heads, "attention.head_count_kv", num_q_heads, "attention.head_count")
    if not hparams.has("attention.key_length"):
        hparams.must_divide(num_q_heads, "attention.head_count", hidden, "embedding_length")
    head_dim = hparams.count("attention.key_length", hidden // num_q_heads)
    hparams.must_be("attention.value_length", head_dim)
    hparams.must_be("attention.causal", True)
    config = ModelConfig(
        architecture="llama",
        name=hparams.name(),
        vocab_size=weights.rows("token_embd.weight"),
        hidden=hidden,
        num_layers=num_layers,
        num_q_heads=num_q_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate=hparams.count("feed_forward_length"),
        norm_eps=hparams.positive("attention.layer_norm_rms_epsilon"),
        rope_theta=hparams.positive("rope.freq_base", 10000.0),
        rope_dim=hparams.rope_dim(head_dim),
        rope_scale=hparams.linear_rope_scale(),
        context_length=hparams.count("context_length"),
        sliding_window=hparams.count_or_zero("attention.sliding_window"),
        file_type=hparams.file_type(),
    )
    hparams.refuse_leftovers()
    return config


def _layer(config: ModelConfig, weights: Weights, prefix: str) -> Layer:
    hidden, intermediate = config.hidden, config.intermediate
    q_size, kv_size = config.num_q_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return Layer(
        attention_in=AttentionIn(
            norm=_norm(config, weights, prefix + "attn_norm.weight"),
            q=_linear(weights, prefix + "attn_q", q_size, hidden),
            k=_linear(weights, prefix + "attn_k", kv_size, hidden),
            v=_linear(weights, prefix + "attn_v", kv_size, hidden),
            rope=Rope(
                theta=config.rope_theta,
                dim=config.rope_dim,
                pairing="adjacent",
                freq_factors=weights.maybe("rope_freqs.weight", config.rope_dim // 2),
                scale=config.rope_scale,
            ),
        ),
        attention=Attention(scale=1 / math.sqrt(config.head_dim)),
        attention_out=AttentionOut(o=_linear(weights, prefix + "attn_output", hidden, q_size)),
        mlp=Mlp(
            norm=_norm(config, weights, prefix + "ffn_norm.weight"),
            gate=Linear(weight=weights.need(prefix + "ffn_gate.weight", intermediate, hidden)),
            up=Linear(weight=weights.need(prefix + "ffn_up.weight", intermediate, hidden)),
            down=Linear(weight=weights.need(prefix + "ffn_down.weight", hidden, intermediate)),
        ),
    )


def _linear(weights: Weights, name: str, outputs: int, inputs: int) -> Linear:
    return Linear(weight=weights.need(f"{name}.weight", outputs, inputs), bias=weights.maybe(f"{name}.bias", outputs))


def _norm(config: ModelConfig, weights: Weights, name: str) -> Norm:
    return Norm(weight=weights.need(name, config.hidden), eps=config.norm_eps)

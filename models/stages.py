"""The vocabulary in which an architecture says what a model is: a plain sequence of stages over named weights.

x is the residual stream [tokens, hidden]. A stage names tensors of the file and holds constants; it computes nothing
and does not know which kernels will run it. Immutable, so any thread may hold it.
"""

from dataclasses import dataclass
from typing import Literal

from models.config import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """y = x Wᵀ + bias, W [outputs, inputs]."""

    weight: str
    bias: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """RMSNorm: y = x / sqrt(mean(x²) + eps) * weight. Source: Zhang & Sennrich 2019, arXiv:1910.07467"""

    weight: str
    eps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Rotates the first `dim` elements of each head; pair i turns by position / scale * theta^(-2i/dim) / factor i.

    pairing  "adjacent": elements 2i and 2i+1; "halves": elements i and i + dim/2
    freq_factors  a tensor [dim/2] of divisors, as Llama 3.1 has; None: all 1
    Source: Su et al. 2021, arXiv:2104.09864; linear scaling: Chen et al. 2023, arXiv:2306.15595
    """

    theta: float
    dim: int
    pairing: Literal["adjacent", "halves"]
    freq_factors: str | None
    scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionIn:
    """n = norm(x); q = rope(q(n)), k = rope(k(n)), v = v(n)."""

    norm: Norm
    q: Linear
    k: Linear
    v: Linear
    rope: Rope


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """softmax(scale * q kᵀ) v, causal, query heads in groups over shared kv heads.

    Source: Ainslie et al. 2023, arXiv:2305.13245
    """

    scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionOut:
    """x += o(attention)."""

    o: Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class Mlp:
    """n = norm(x); x += down(activation(gate(n)) * up(n)). Source: Shazeer 2020, arXiv:2002.05202"""

    norm: Norm
    gate: Linear
    up: Linear
    down: Linear
    activation: Literal["silu"] = "silu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    attention_in: AttentionIn
    attention: Attention
    attention_out: AttentionOut
    mlp: Mlp


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """x = embed[token]; every layer; logits = head(final_norm(x)). Tied embeddings: head.weight == embed."""

    config: ModelConfig
    embed: str
    layers: tuple[Layer, ...]
    final_norm: Norm
    head: Linear

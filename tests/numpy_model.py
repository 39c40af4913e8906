"""A described model computed in float64, straight from the stages' own words: the truth that kernels are held to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from models.architectures import describe
from models.gguf import GgufFile
from models.stages import Layer, Linear, Model, Norm, Rope

Array = npt.NDArray[np.float64]


class NumpyModel:
    """Runs a description in float64 over one sequence, from the stages' own words."""

    def __init__(self, gguf: GgufFile, window: int = 0, sinks: int = 0) -> None:
        self.gguf = gguf
        self.model: Model = describe(gguf)
        self.window, self.sinks = window, sinks

    def weight(self, name: str) -> Array:
        tensor = self.gguf.tensors[name]
        rows = tensor.data.reshape(tensor.shape[0], -1) if len(tensor.shape) > 1 else tensor.data.reshape(1, -1)
        return tensor.block_type.dequantize(rows).astype(np.float64).reshape(tensor.shape)

    def linear(self, x: Array, linear: Linear) -> Array:
        y: Array = x @ self.weight(linear.weight).T
        return y + self.weight(linear.bias) if linear.bias else y

    def norm(self, x: Array, norm: Norm) -> Array:
        y: Array = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + norm.eps) * self.weight(norm.weight)
        return y

    def rope(self, x: Array, rope: Rope) -> Array:
        """x [tokens, heads, head_dim], adjacent pairs."""
        pairs = np.arange(rope.dim // 2)
        frequencies = rope.theta ** (-2 * pairs / rope.dim)
        if rope.freq_factors:
            frequencies = frequencies / self.weight(rope.freq_factors)
        angles = np.arange(len(x))[:, None] / rope.scale * frequencies
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        out = x.copy()
        even, odd = x[..., 0 : rope.dim : 2], x[..., 1 : rope.dim : 2]
        out[..., 0 : rope.dim : 2], out[..., 1 : rope.dim : 2] = even * cos - odd * sin, even * sin + odd * cos
        return out

    def attend(self, x: Array, layer: Layer) -> Array:
        config, stage = self.model.config, layer.attention_in
        tokens, normed = len(x), self.norm(x, stage.norm)
        q = self.rope(self.linear(normed, stage.q).reshape(tokens, -1, config.head_dim), stage.rope)
        k = self.rope(self.linear(normed, stage.k).reshape(tokens, -1, config.head_dim), stage.rope)
        v = self.linear(normed, stage.v).reshape(tokens, -1, config.head_dim)
        group = config.num_q_heads // config.num_kv_heads
        k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
        scores = np.einsum("thd,shd->hts", q, k) * layer.attention.scale
        scores[:, ~self.mask(tokens)] = -np.inf
        probs = np.exp(scores - scores.max(axis=-1, keepdims=True))
        probs /= probs.sum(axis=-1, keepdims=True)
        return self.linear(np.einsum("hts,shd->thd", probs, v).reshape(tokens, -1), layer.attention_out.o)

    def mask(self, tokens: int) -> npt.NDArray[np.bool_]:
        """[row, token]: whether the row attends to the token."""
        row, token = np.ogrid[:tokens, :tokens]
        near = token > row - self.window if self.window else True
        return (token <= row) & (near | (token < self.sinks))

    def mlp(self, x: Array, layer: Layer) -> Array:
        normed = self.norm(x, layer.mlp.norm)
        gate = self.linear(normed, layer.mlp.gate)
        return self.linear(gate / (1 + np.exp(-gate)) * self.linear(normed, layer.mlp.up), layer.mlp.down)

    def logits(self, ids: Sequence[int]) -> Array:
        """[tokens, vocab] after each token of a sequence."""
        x = self.weight(self.model.embed)[list(ids)]
        for layer in self.model.layers:
            x = x + self.attend(x, layer)
            x = x + self.mlp(x, layer)
        return self.linear(self.norm(x, self.model.final_norm), self.model.head)

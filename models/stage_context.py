"""What every stage builder is given: the device's side of a model while its plan is made.

Knows no stage. The engine's background thread, at load.
"""

from __future__ import annotations

from dataclasses import dataclass

from models.config import ModelConfig
from models.kv_pages import KvPages
from models.scratch import Scratch
from models.weights import Weights
from shaders.device import Buffer
from shaders.ops.matmul import MatmulContext, stride


@dataclass(frozen=True, slots=True, kw_only=True)
class StageContext:
    """Buffers and weights of one model. `heads` is the attention's uniform block, `rope` its table of rotations.

    `windowed`: whether `heads` has a window, beyond which attention reads nothing.
    """

    config: ModelConfig
    matmul: MatmulContext
    weights: Weights
    scratch: Scratch
    kv: KvPages
    heads: Buffer
    rope: Buffer
    windowed: bool
    last_tokens: Buffer
    logits: Buffer
    logits_stride: int

    def gain(self, name: str) -> Buffer:
        """A norm's weight, padded as the residual is."""
        return self.weights.vector(name, padded=stride(self.config.hidden))

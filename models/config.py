"""The sizes and constants of a loaded model, resolved: no key is optional here and nothing is left to guess.

Filled by the architecture files. Does not know file formats or devices. Immutable, so any thread may hold it.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """`rope_scale` divides positions (1.0: none). `file_type` is what people call the file, such as "Q4_1".

    `sliding_window`: tokens up to its own that a position attends to; 0: all.
    """

    architecture: str
    name: str
    vocab_size: int
    hidden: int
    num_layers: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate: int
    norm_eps: float
    rope_theta: float
    rope_dim: int
    rope_scale: float
    context_length: int
    sliding_window: int
    file_type: str

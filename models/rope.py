"""The table of rotations, computed once at load as transformers computes it: f32 angles, then cosine and sine.

Knows nothing of devices. Any thread.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from models.stages import Rope


def rope_table(rope: Rope, factors: npt.NDArray[np.float32] | None, positions: int) -> npt.NDArray[np.float32]:
    """f32 [positions, dim/2, 2] of (cos, sin); factors are the divisors [dim/2] of Llama 3.1, or None.

    Source: Su et al. 2021, arXiv:2104.09864, section 3.4.2; the scale divides positions (Chen et al. 2023,
    arXiv:2306.15595).
    """
    exponents = np.arange(0, rope.dim, 2, dtype=np.float32) / np.float32(rope.dim)
    frequencies = (np.float32(1.0) / np.float32(rope.theta) ** exponents).astype(np.float32)
    if factors is not None:
        frequencies = frequencies / factors
    steps = np.arange(positions, dtype=np.float32) / np.float32(rope.scale)
    angles = np.outer(steps, frequencies).astype(np.float32)
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1).astype(np.float32)

"""Attention over pages, and the plain rotation and page write, as typed calls. Knows nothing of layers.

The engine's background thread, at load.
"""

from __future__ import annotations

from shaders.device import Buffer
from shaders.dispatch import Dispatch
from shaders.kernel import KernelCache

QUAD = 4
"""Query heads of one kv head that a workgroup takes together."""

ROWS = 4
"""Rows that attention_tiled takes together."""


def attention(
    kernels: KernelCache,
    *,
    step: Buffer,
    heads: Buffer,
    page_table: Buffer,
    q: Buffer,
    keys: Buffer,
    values: Buffer,
    y: Buffer,
    num_q_heads: int,
    num_kv_heads: int,
    head_dim: int,
    kv_type: str,
    subgroups: bool,
    windowed: bool = False,
) -> Dispatch:
    """y[r] = attention of row r over its sequence up to its own position; q and y are [tokens, stride].

    windowed: over the sinks and the window that `heads` has. Without, the kernels know of neither and are no slower.
    """
    lanes = "subgroup" if subgroups else "workgroup"
    slots = {
        "lanes": f"common/lanes_{lanes}.wgsl",
        "kv_read": f"common/kv_read_{kv_type}.wgsl",
        "reach": f"common/reach_{'window' if windowed else 'whole'}.wgsl",
    }
    buffers = {
        "step": step,
        "heads": heads,
        "page_table": page_table,
        "q": q,
        "k_pages": keys,
        "v_pages": values,
        "y": y,
    }
    return Dispatch(
        single=kernels.get("attention_paged", slots).bind(buffers),
        tiled=kernels.get("attention_tiled", slots).bind(buffers) if subgroups else None,
        tile=ROWS,
        grid=(num_kv_heads * quads(num_q_heads, num_kv_heads), 1, -(-head_dim // 64)),
    )


def quads(num_q_heads: int, num_kv_heads: int) -> int:
    """Workgroups that share a kv head."""
    return -(-(num_q_heads // num_kv_heads) // QUAD)


def rope_write(
    kernels: KernelCache,
    *,
    step: Buffer,
    heads: Buffer,
    rope: Buffer,
    page_table: Buffer,
    q: Buffer,
    k: Buffer,
    v: Buffer,
    keys: Buffer,
    values: Buffer,
    pairs: int,
    kv_type: str,
) -> Dispatch:
    """Rotate q in place and k, and write k and v to their pages; `pairs` counts those of q, k and v together."""
    kernel = kernels.get("rope_write", {"kv_write": f"common/kv_write_{kv_type}.wgsl"})
    bound = kernel.bind(
        {
            "step": step,
            "heads": heads,
            "rope": rope,
            "page_table": page_table,
            "k": k,
            "v": v,
            "q": q,
            "k_pages": keys,
            "v_pages": values,
        }
    )
    return Dispatch(single=bound, grid=(-(-pairs // 64), 1, 1))

"""What the keys and values of a model depend on, as 16 bytes: equal bytes may be shared, others never meet.

Owns the list of these things. engine/tiers/file_digest.py reads files, shaders/numerics.py knows the kernels. Any
thread; does no work to speak of.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from shaders.numerics import numerics_digest

FINGERPRINT_BYTES = 16
Setting = str | int | float | bool | None


def fingerprint(
    *,
    files: Sequence[bytes],
    kv_type: str,
    kernel_set: str,
    clusters: int,
    adapter: str,
    backend: str,
    page_layout: int,
    settings: Sequence[Setting] = (),
    numerics: bytes | None = None,
) -> bytes:
    """The fingerprint of a model as it runs here.

    `files` are the digests of all its files in order: weights, tokenizer, architecture and rope settings are in them.
    `page_layout` is models.kv_pages.PAGE_LAYOUT_VERSION. `settings` are further things that change what is computed,
    such as a driver's version or a sliding window; their order counts. `numerics` None means this process's kernels.
    """
    arithmetic = numerics_digest() if numerics is None else numerics
    facts = [
        [digest.hex() for digest in files],
        [kv_type, kernel_set, clusters, adapter, backend, page_layout, arithmetic.hex()],
        list(settings),
    ]
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=FINGERPRINT_BYTES).digest()

"""What a sampler should do, in float64: supports, probabilities, and how far draws may stray from them.

Not a test. The vectors lie in data/sampling and data/smollm2.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file

DATA = Path(__file__).parent.parent / "data"
OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}

Params = Mapping[str, float]
Logits = npt.NDArray[np.float32]
Probs = npt.NDArray[np.float64]


@cache
def vectors() -> dict[str, Logits]:
    found = dict(load_file(DATA / "sampling" / "logits.safetensors"))
    smollm2 = load_file(DATA / "smollm2" / "logits.safetensors")
    chat = smollm2["chat.last_logits"]
    bits = chat.view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) << 16
    return found | {
        "smollm2_chat": chat,
        "smollm2_unicode": smollm2["unicode.last_logits"],
        "smollm2_chat_bf16": rounded.astype(np.uint32).view(np.float32),
        "all_equal_49152": np.zeros(49152, np.float32),
    }


def softmax(logits: npt.NDArray[np.float64], kept: npt.NDArray[np.bool_]) -> Probs:
    powers = np.where(kept, np.exp(logits - logits[kept].max()), 0.0)
    return powers / powers.sum()


def expected_probs(vector: Logits, params: Params) -> tuple[Probs, bool]:
    """Probabilities in float64, and whether the sum at the end of the nucleus is too near top_p to tell."""
    p = OFF | dict(params)
    if p["temperature"] == 0:
        return np.eye(1, len(vector), int(vector.argmax()))[0], False
    logits = vector.astype(np.float64) / p["temperature"]
    kept = np.isfinite(logits)
    near = False
    if 0 < p["top_k"] < len(logits):
        kept &= logits >= np.sort(logits)[-int(p["top_k"])]
    if p["top_p"] < 1:
        probs = softmax(logits, kept)
        order = np.argsort(-probs, kind="stable")
        sums = np.cumsum(probs[order])
        num = int(np.searchsorted(sums, p["top_p"])) + 1
        near = bool(np.abs(sums[max(num - 2, 0) : num + 1] - p["top_p"]).min() < 1e-6)
        kept[order[num:]] = False
    probs = softmax(logits, kept)
    kept &= probs >= p["min_p"] * probs.max()
    return softmax(logits, kept), near


def chi_square_z(tokens: npt.NDArray[np.int64], probs: Probs) -> float:
    """How many standard deviations the chi-square statistic lies above its mean (Wilson and Hilferty 1931).

    Tokens expected at least 8 times are cells of their own; the others, in id order, fill cells of about 16.
    """
    expected = probs * len(tokens)
    order = np.nonzero(expected < 8)[0]
    cells = np.zeros(len(probs), np.int64)
    single = np.nonzero(expected >= 8)[0]
    cells[single] = np.arange(len(single))
    num_rest = max(1, int(expected[order].sum() // 16))
    share = np.cumsum(expected[order]) / max(expected[order].sum(), 1e-300)
    cells[order] = len(single) + np.minimum((share * num_rest).astype(np.int64), num_rest - 1)
    means = np.bincount(cells, expected)
    counts = np.bincount(cells[tokens], minlength=len(means))
    # A leftover cell too small for the approximation joins its neighbour.
    if len(means) > 1 and means[-1] < 5:
        means[-2:] = 0.0, means[-2:].sum()
        counts[-2:] = 0, counts[-2:].sum()
    used = means > 0
    freedom = int(used.sum()) - 1
    if freedom == 0:
        return 0.0
    statistic = float(((counts - means)[used] ** 2 / means[used]).sum())
    spread = 2 / (9 * freedom)
    return ((statistic / freedom) ** (1 / 3) - (1 - spread)) / spread**0.5


def agrees(got: npt.NDArray[np.bool_], expected: npt.NDArray[np.bool_], near: bool) -> bool:
    """Equal; off by one token where the sum meets top_p to 1e-6; within 0.1 % beyond 5,000 tokens."""
    size = int(expected.sum())
    allowed = max(size // 1000 if size > 5000 else 0, 1 if near else 0)
    return int((got != expected).sum()) <= allowed

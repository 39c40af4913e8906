"""Sentences of the window that hold numbers: sizes, load progress, speed of an answer.

Plain functions from values to text; knows no widget. Any thread.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.config import Estimate
    from engine.loading import LoadedModel, LoadProgress
    from engine.request import Delta, Usage

_GB = 1_000_000_000
_MB = 1_000_000
_QUANTIZATION = re.compile(r"[-._ ](?:I?Q\d\w*|F16|BF16|F32)$", re.IGNORECASE)

NEXT_MESSAGE = "Write the next message. It is sent when this answer ends."
RUNS_SLOWLY = "No graphics adapter can be used, so models run slowly here."


def size(count: int) -> str:
    """Bytes in words: GB with one decimal from 1 GB on, else whole MB."""
    return f"{count / _GB:.1f} GB" if count >= _GB else f"{count / _MB:.0f} MB"


def part_of_size(done: int, total: int) -> str:
    """Two sizes that share the unit of the larger one: "31 of 98 MB"."""
    return f"{done / _GB:.1f} of {size(total)}" if total >= _GB else f"{done / _MB:.0f} of {size(total)}"


def model_name(path: Path) -> str:
    """What to call a model before its file is read: the file's name without suffix and quantization."""
    stem = _QUANTIZATION.sub("", path.stem if path.suffix.lower() == ".gguf" else path.name)
    return re.sub(r"[-_ ]+", " ", stem).strip() or path.name


def loading(name: str, progress: LoadProgress | None) -> str:
    """The line over the progress bar."""
    if progress is None or progress.done_bytes <= 0 or progress.total_bytes <= 0:
        return f"Loading {name}. You can write already."
    if progress.done_bytes >= progress.total_bytes:
        return f"Loading {name}, almost done. You can write already."
    return f"Loading {name}, {part_of_size(progress.done_bytes, progress.total_bytes)}. You can write already."


def memory(estimate: Estimate) -> str:
    """What a model takes: "about 4.9 GB: 4.1 weights, 0.6 for 8,192 tokens, 0.2 working space"."""
    unit, digits = (_GB, 1) if estimate.total >= _GB else (_MB, 0)
    weights, context, rest = (
        f"{part / unit:.{digits}f}" for part in (estimate.weights, estimate.context, estimate.working_space)
    )
    tokens = f"{estimate.tokens:,} tokens"
    return f"about {size(estimate.total)}: {weights} weights, {context} for {tokens}, {rest} working space"


def ready_line(model: LoadedModel) -> str:
    """What stands under "… is ready.": where the model runs, and that nothing leaves."""
    place = "this computer's processor" if model.software_adapter else f"your {model.adapter}"
    return f"It runs on {place}. What you write stays on this computer."


def stats(delta: Delta) -> str:
    """The line under an answer, from its last delta: speed, first token, kept part. Empty when nothing was timed."""
    parts = ["Stopped"] if delta.finish_reason == "abort" else []
    if delta.timings is not None:
        if delta.timings.decode_tokens_per_s > 0:
            parts.append(f"{delta.timings.decode_tokens_per_s:.1f} tokens per second")
        if delta.timings.ttft_s > 0:
            parts.append(f"first token {seconds(delta.timings.ttft_s)}")
    if delta.usage is not None and delta.usage.cached_tokens > 0:
        parts.append(f"{delta.usage.cached_tokens:,} of {delta.usage.prompt_tokens:,} prompt tokens kept")
    return " · ".join(parts)


def live_stats(tokens: int, elapsed_s: float, first_token_s: float) -> str:
    """The same line while the answer is written; elapsed_s counts from the first token."""
    first = f"first token {seconds(first_token_s)}"
    if tokens < 2 or elapsed_s < 0.25:
        return first
    return f"{(tokens - 1) / elapsed_s:.1f} tokens per second · {first}"


def seconds(duration_s: float) -> str:
    """A duration: "0.14 s", "2.4 s", "1 min 16 s"."""
    if duration_s >= 60:
        return f"{int(duration_s) // 60} min {int(duration_s) % 60} s"
    return f"{duration_s:.1f} s" if duration_s >= 0.95 else f"{duration_s:.2f} s"


def context_count(used: int, context_length: int) -> str:
    """How full the chat's context is."""
    return f"{used:,} of {context_length:,} tokens"


def context_reached(usage: Usage | None) -> str:
    """What ended an answer whose context is full."""
    if usage is None:
        return "This chat has reached its longest context."
    return f"This chat has reached {usage.prompt_tokens + usage.completion_tokens:,} tokens."


def headline_and_rest(sentence: str, otherwise: str) -> tuple[str, str]:
    """Split an error into its first sentence and what follows; `otherwise` is the headline where that is too long."""
    match = re.match(r"(.{1,110}?[.])\s+(?=\S)", sentence, re.DOTALL)
    if match:
        return match.group(1), sentence[match.end() :]
    if len(sentence) <= 110:
        return sentence, ""
    return otherwise, sentence

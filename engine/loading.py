"""What a load asks for and what it yields: the seam between ThreadedEngine and the code that reads models.

Knows no file format and no GPU; engine/loader.py does. The values cross threads and are frozen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from engine.config import Estimate, Mode
from engine.function_table import FunctionTable
from engine.tiers.settings import TierSettings
from models.answer_memory import AnswerMemory
from models.chat_template import ChatTemplate
from models.tokenizer import Tokenizer

KvType = Literal["f16", "f32"]
KernelSet = Literal["fused", "plain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """What the user said; None means that the engine decides. `kernels` None probes the device.

    mode, max_sequences, total_tokens, memory_bytes, window and sinks as engine/config.py has them. tiers: where
    conversations are kept below the device; None: nowhere.
    """

    model: Path
    adapter: str | None = None
    context: int | None = None
    kv_type: KvType = "f16"
    kernels: KernelSet | None = None
    mode: Mode = "local"
    max_sequences: int | None = None
    total_tokens: int | None = None
    memory_bytes: int | None = None
    tiers: TierSettings | None = None
    window: int | None = None
    sinks: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadProgress:
    """How far a load is: a stage in words ("Reading", "Loading weights", "Preparing kernels") and bytes of weights.

    `estimate`, what the load will take on the device, comes once it is known, before any weight moves.
    """

    stage: str
    done_bytes: int
    total_bytes: int
    estimate: Estimate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model ready to answer. `table` belongs to the engine's background thread; the rest may be used anywhere.

    fingerprint: equal for whatever computes the same keys and values; empty where nothing is kept below the device.
    """

    name: str
    path: Path
    quantization: str
    adapter: str
    software_adapter: bool
    context_length: int
    load_s: float
    weight_bytes: int
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    table: FunctionTable
    answers: AnswerMemory = field(default_factory=AnswerMemory)
    fingerprint: bytes = b""


class Loader(Protocol):
    """Loads a model; runs on the engine's background thread.

    `progress` may be called often. `cancelled` is asked between windows of weights; when it says True the load frees
    what it took and raises LoadCancelled. Raises models.errors.ModelError or engine.errors.DeviceFailed.
    """

    def __call__(
        self, options: LoadOptions, progress: Callable[[LoadProgress], None], cancelled: Callable[[], bool]
    ) -> LoadedModel: ...


class LoadCancelled(Exception):
    """The load was given up because nobody wants it any more."""

"""From what a user said and what a device has to what one model may hold: resolved once, nothing optional behind it.

Owns the arithmetic of memory before a load, and the sentences for what cannot fit. Knows no device calls; the loader
asks the device and hands the facts in. Any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal

from engine.errors import InvalidParameter, ModelNotLoaded
from engine.function_table import MAX_IN_FLIGHT, PAGE_SIZE, TableLimits

Mode = Literal["local", "interactive", "server"]
MODES: tuple[Mode, ...] = ("local", "interactive", "server")

DEFAULT_CONTEXT = 8192
"""Tokens of context where nobody says anything and the model allows as much."""

_SLOTS: Mapping[Mode, int] = {"local": 16, "interactive": 1, "server": 32}
_MAX_ROWS = 128
_MAX_SAMPLES = 64
_FLOOR_TOKENS = 256
_MARGIN_BYTES = 32 << 20
"""For what is not counted one by one: constants, the step's table, readbacks, the driver's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What the user said; None leaves the choice to the engine.

    mode: "local" serves a few chats and clients, "interactive" one, "server" many. context: tokens that one sequence
    may reach. total_tokens: tokens kept on the device over all sequences. memory_bytes: what may be used instead of
    what the device reports.
    """

    mode: Mode = "local"
    context: int | None = None
    total_tokens: int | None = None
    max_sequences: int | None = None
    memory_bytes: int | None = None


def config_from(values: Mapping[str, object]) -> EngineConfig:
    """A config from a file or a command. Raises InvalidParameter for keys and values that it does not know."""
    known = {field.name for field in fields(EngineConfig)}
    for key, value in values.items():
        if key not in known:
            raise InvalidParameter(f"There is no setting called {key}. Known are {', '.join(sorted(known))}.")
        if key == "mode":
            if value not in MODES:
                raise InvalidParameter(f"mode is {value}; it must be one of {', '.join(MODES)}.")
        elif value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise InvalidParameter(f"{key} is {value}; it must be a whole number above 0.")
    return EngineConfig(**values)  # type: ignore[arg-type]  # checked above, one by one


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What a model asks of memory. row_bytes: activations per row of a step; page_bytes: one page in every layer."""

    vocab_size: int
    trained_context: int
    weight_bytes: int
    page_bytes: int
    layer_page_bytes: int
    row_bytes: int


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What a device has to give: bytes free, the largest range that one binding covers, and who says so."""

    budget_bytes: int
    max_binding_bytes: int
    source: str


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes that a load will take on the device, by what they are for."""

    weights: int
    context: int
    working_space: int

    @property
    def total(self) -> int:
        return self.weights + self.context + self.working_space


def check_context(context: int | None, trained: int) -> None:
    """Raise ModelNotLoaded for a context that no device could give this model."""
    if context is not None and not 2 <= context <= trained:
        raise ModelNotLoaded(f"A context of {context} is not possible: this model takes 2 to {trained} tokens.")


def resolve(config: EngineConfig, model: ModelFacts, device: DeviceFacts) -> tuple[TableLimits, Estimate]:
    """Limits that fit, and what they will take. What the user said is kept or refused, never changed.

    Raises ModelNotLoaded, saying what would fit.
    """
    check_context(config.context, model.trained_context)
    slots = config.max_sequences or _SLOTS[config.mode]
    samples = max(_MAX_SAMPLES, slots)
    working = _MAX_ROWS * model.row_bytes + samples * 4 * model.vocab_size + _MARGIN_BYTES
    free_pages = (device.budget_bytes - model.weight_bytes - working) // model.page_bytes
    pages_in_reach = min(free_pages, device.max_binding_bytes // model.layer_page_bytes)
    context = config.context or min(model.trained_context, DEFAULT_CONTEXT, max(pages_in_reach - 1, 0) * PAGE_SIZE)
    wanted_pages = _pages(context) + 1
    too_short = config.context is None and context < min(_FLOOR_TOKENS, model.trained_context)
    if too_short or wanted_pages > pages_in_reach:
        raise ModelNotLoaded(_too_large(context, model, device, working, pages_in_reach))
    num_pages = _num_pages(config, context, slots, pages_in_reach)
    limits = TableLimits(
        vocab_size=model.vocab_size,
        context_length=context,
        max_rows=max(_MAX_ROWS, slots),
        max_samples=samples,
        max_slots=slots,
        num_pages=num_pages,
        page_bytes=model.page_bytes,
        max_in_flight=MAX_IN_FLIGHT,
    )
    return limits, Estimate(model.weight_bytes, num_pages * model.page_bytes, working)


def _num_pages(config: EngineConfig, context: int, slots: int, in_reach: int) -> int:
    """Pages over all sequences: what was asked for, else one full context and room for others to be kept beside it."""
    if config.total_tokens is not None:
        asked = _pages(config.total_tokens)
        if not _pages(context) <= asked <= in_reach:
            raise ModelNotLoaded(
                f"Room for {config.total_tokens} tokens in all is not possible: with a context of {context} it must be "
                f"{context} to {in_reach * PAGE_SIZE}."
            )
        return asked
    shares = {"interactive": 1, "local": 1, "server": slots}[config.mode]
    return max(_pages(context) + 1, min(in_reach, _pages(context) * shares + slots))


def _pages(tokens: int) -> int:
    return -(-tokens // PAGE_SIZE)


def _too_large(context: int, model: ModelFacts, device: DeviceFacts, working: int, pages: int) -> str:
    need = model.weight_bytes + working + (_pages(max(context, _FLOOR_TOKENS)) + 1) * model.page_bytes
    sentence = (
        f"This model needs {_gb(need)} GB for {max(context, _FLOOR_TOKENS):,} tokens of context; "
        f"{_gb(device.budget_bytes)} GB are free, as told by {device.source}."
    )
    tokens = (pages - 1) * PAGE_SIZE
    if tokens >= _FLOOR_TOKENS:
        return f"{sentence} A context of {min(tokens, model.trained_context):,} fits."
    return f"{sentence} A smaller model, or the same one more strongly quantized, fits."


def _gb(count: int) -> str:
    return f"{count / 1e9:.1f}"

"""From what a user said and what a device has to what one model may hold: resolved once, nothing optional behind it.

Owns the arithmetic of memory before a load, and the sentences for what cannot fit. Knows no device calls; the loader
asks the device and hands the facts in. Any thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Literal

from engine.errors import InvalidParameter, ModelNotLoaded
from engine.function_table import MAX_IN_FLIGHT, MAX_MOVED_PAGES, PAGE_SIZE, TableLimits
from engine.window import pages_of, pages_of_window

Mode = Literal["local", "interactive", "server"]
MODES: tuple[Mode, ...] = ("local", "interactive", "server")

DEFAULT_CONTEXT = 8192
"""Tokens of context where nobody says anything and the model allows as much."""

_SLOTS: Mapping[Mode, int] = {"local": 16, "interactive": 1, "server": 32}
_LEAST: Mapping[str, int] = {"window": 0, "sinks": 0}
_LEAST_WINDOW = 16
_DEFAULT_SINKS = 4
"""Where the user gives a window to a model that has none: enough to keep such a model fluent (arXiv:2309.17453)."""

_MAX_ROWS = 128
_MAX_SAMPLES = 64
_MOST_SEQUENCES = 1024
_FLOOR_TOKENS = 256
MARGIN_BYTES = 32 << 20
"""For what is not counted one by one: constants, small tables, the driver's own."""

_SPARE_PAGES = 1 + (1 + MAX_IN_FLIGHT) * MAX_MOVED_PAGES
"""Pages' worth of buffers through which pages are copied, loaded and saved: one between, one packed, the readbacks."""

_SHED_SHARE = 64
"""A smaller pool is worth another load only if it saves this part of the whole at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What the user said; None leaves the choice to the engine.

    mode: "local" serves a few chats and clients, "interactive" one, "server" many. context: tokens that one sequence
    may reach. total_tokens: tokens kept on the device over all sequences. memory_bytes: what may be used instead of
    what the device reports. window and sinks: a token attends to the `window` tokens that end with itself and to the
    first `sinks` of its sequence, so that memory bounds no conversation's length; a window of 0 turns the model's own
    off.
    """

    mode: Mode = "local"
    context: int | None = None
    total_tokens: int | None = None
    max_sequences: int | None = None
    memory_bytes: int | None = None
    window: int | None = None
    sinks: int | None = None


def config_from(values: Mapping[str, object]) -> EngineConfig:
    """A config from a file or a command. Raises InvalidParameter for keys and values that it does not know."""
    known = {field.name for field in fields(EngineConfig)}
    for key, value in values.items():
        if key not in known:
            raise InvalidParameter(f"There is no setting called {key}. Known are {', '.join(sorted(known))}.")
        if key == "mode":
            if value not in MODES:
                raise InvalidParameter(f"mode is {value}; it must be one of {', '.join(MODES)}.")
        elif value is not None and (
            isinstance(value, bool) or not isinstance(value, int) or value < _LEAST.get(key, 1)
        ):
            least = _LEAST.get(key, 1)
            raise InvalidParameter(f"{key} is {value}; it must be a whole number from {least} up.")
    return EngineConfig(**values)  # type: ignore[arg-type]  # checked above, one by one


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What a model asks of memory, in bytes.

    page_bytes: one page in every layer, layer_page_bytes: its keys in one. row_bytes: per row of a step; sample_bytes:
    per token drawn in one, logits_bytes of them its logits; slot_bytes: per sequence; position_bytes: per token of
    context, whoever has it. trained_window is in tokens: those to which the model attends; 0: all.
    """

    vocab_size: int
    trained_context: int
    weight_bytes: int
    page_bytes: int
    layer_page_bytes: int
    row_bytes: int
    sample_bytes: int
    logits_bytes: int
    slot_bytes: int
    position_bytes: int
    trained_window: int


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What a device has to give: bytes free, the largest range that one binding covers, and who says so."""

    budget_bytes: int
    max_binding_bytes: int
    source: str


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes that a load will take on the device, by what they are for; `tokens` can be kept in `context`."""

    weights: int
    context: int
    working_space: int
    tokens: int

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
    try:
        return _resolved(config, model, device)
    except ModelNotLoaded as refused:
        if config.max_sequences is None or config.max_sequences == 1:
            raise
        sentence = f"{config.max_sequences:,} sequences at once do not fit beside this model"
        fewer = _fewer_sequences(config, model, device)
        if fewer is not None:
            raise ModelNotLoaded(f"{sentence}; {fewer:,} do.") from refused
        if not isinstance(refused, _NothingFits):
            raise
    try:
        _resolved(replace(config, max_sequences=1), model, device)
    except ModelNotLoaded as refused:
        raise ModelNotLoaded(f"{sentence}. With one: {refused}") from refused
    raise AssertionError("one sequence fits, and was not found")


class _NothingFits(ModelNotLoaded):
    """There is no context that would fit either."""


def _fewer_sequences(config: EngineConfig, model: ModelFacts, device: DeviceFacts) -> int | None:
    fewer = config.max_sequences or 1
    while fewer > 1:
        fewer //= 2
        with suppress(ModelNotLoaded):
            _resolved(replace(config, max_sequences=fewer), model, device)
            return fewer
    return None


def _resolved(config: EngineConfig, model: ModelFacts, device: DeviceFacts) -> tuple[TableLimits, Estimate]:
    in_binding = min(_MOST_SEQUENCES, device.max_binding_bytes // model.logits_bytes)
    slots = config.max_sequences or min(_SLOTS[config.mode], in_binding)
    samples = max(slots, min(_MAX_SAMPLES, in_binding))
    rows = max(_MAX_ROWS, slots)
    working = (
        rows * model.row_bytes
        + samples * model.sample_bytes
        + slots * model.slot_bytes
        + _SPARE_PAGES * model.page_bytes
        + MARGIN_BYTES
    )
    room = device.budget_bytes - model.weight_bytes - working
    bound = device.max_binding_bytes // model.layer_page_bytes
    beside = PAGE_SIZE * model.position_bytes + 4 * slots  # rotations, and the page's entry in each table of pages
    reach = min(room // (model.page_bytes + beside), bound)
    context = config.context or _context(config, model, reach)
    window, sinks = _window(config, model.trained_window, context)
    per_sequence = _pages_per_sequence(context, window, sinks)
    if window:
        reach = min((room - pages_of(context) * beside) // model.page_bytes, bound)
    least = per_sequence + (config.total_tokens is None)
    chosen = config.context is None and config.total_tokens is None
    too_short = chosen and context < min(_FLOOR_TOKENS, model.trained_context)
    if not 0 < samples <= in_binding:
        reach = 0
    if too_short or least > reach:
        most = per_sequence if window else model.trained_context
        beside *= pages_of(context)
        raise _too_large(config, context, model, device, working + beside, reach, most)
    room -= pages_of(context) * beside
    num_pages = _num_pages(config, context, slots, min(room // model.page_bytes, bound), per_sequence)
    limits = TableLimits(
        vocab_size=model.vocab_size,
        context_length=context,
        max_rows=rows,
        max_samples=samples,
        max_slots=slots,
        num_pages=num_pages,
        page_bytes=model.page_bytes,
        window=window,
        sinks=sinks,
        max_in_flight=MAX_IN_FLIGHT,
    )
    return limits, _estimate(limits, model, working + pages_of(context) * beside)


def smaller_pools(
    config: EngineConfig, limits: TableLimits, estimate: Estimate
) -> Iterator[tuple[TableLimits, Estimate]]:
    """What to try when a device refuses what should have fitted: half of the pages beyond one sequence, then none.

    Nothing where the number of pages is the user's own, and nothing that would save next to nothing.
    """
    least = _pages_per_sequence(limits.context_length, limits.window, limits.sinks) + 1
    last = limits.num_pages
    for num_pages in (least + (last - least) // 2, least) if config.total_tokens is None else ():
        saved = (last - num_pages) * limits.page_bytes
        if saved * _SHED_SHARE > estimate.total:
            last = num_pages
            context, tokens = num_pages * limits.page_bytes, num_pages * PAGE_SIZE
            yield replace(limits, num_pages=num_pages), replace(estimate, context=context, tokens=tokens)


def _estimate(limits: TableLimits, model: ModelFacts, working: int) -> Estimate:
    num_pages = limits.num_pages
    return Estimate(model.weight_bytes, num_pages * model.page_bytes, working, num_pages * PAGE_SIZE)


def _context(config: EngineConfig, model: ModelFacts, pages_in_reach: int) -> int:
    """Where nobody named one: what is usual, as far as the model, the memory and the tokens in all allow."""
    if config.total_tokens is not None:
        return max(2, min(model.trained_context, DEFAULT_CONTEXT, config.total_tokens))
    return min(model.trained_context, DEFAULT_CONTEXT, max(pages_in_reach - 1, 0) * PAGE_SIZE)


def _window(config: EngineConfig, trained: int, context: int) -> tuple[int, int]:
    """Window and sinks, both 0 where everything is attended to. Raises ModelNotLoaded for what is not possible."""
    window = trained if config.window is None else config.window
    if not window:
        if config.sinks:
            raise ModelNotLoaded("Sinks without a window have no meaning: give a window too, or leave the sinks out.")
        return 0, 0
    if window < _LEAST_WINDOW:
        raise ModelNotLoaded(
            f"A window of {window} is not possible: it must be {_LEAST_WINDOW} tokens or more, or 0 for none."
        )
    if window >= context:
        return 0, 0
    sinks = config.sinks
    if sinks is None:
        sinks = 0 if config.window is None else min(_DEFAULT_SINKS, context - window)
    if sinks < 0 or sinks + window > context:
        raise ModelNotLoaded(
            f"{sinks} sinks are not possible: with a window of {window} and a context of {context} tokens they must be "
            f"0 to {context - window}."
        )
    return window, sinks


def _pages_per_sequence(context: int, window: int, sinks: int) -> int:
    """Pages that one sequence fills at once: all of its context, or sinks, window, and a chunk of a long prompt.

    What leaves the window is free when the steps in flight have retired, so a second chunk keeps the device busy.
    """
    if not window:
        return pages_of(context)
    return min(pages_of(context), pages_of(sinks) + pages_of_window(window) + 2 * pages_of(_MAX_ROWS))


def _num_pages(config: EngineConfig, context: int, slots: int, in_reach: int, per_sequence: int) -> int:
    """Pages over all sequences: what was asked for, else one full sequence and room for others to be kept beside it."""
    if config.total_tokens is not None:
        asked = pages_of(config.total_tokens)
        if not per_sequence <= asked <= in_reach:
            raise ModelNotLoaded(
                f"Room for {config.total_tokens:,} tokens in all is not possible: with a context of {context:,} it "
                f"must be {min(context, per_sequence * PAGE_SIZE):,} to {in_reach * PAGE_SIZE:,}."
            )
        return asked
    shares = {"interactive": 1, "local": 1, "server": slots}[config.mode]
    return max(per_sequence + 1, min(in_reach, per_sequence * shares + slots))


def _too_large(
    config: EngineConfig, context: int, model: ModelFacts, device: DeviceFacts, working: int, pages: int, most: int
) -> ModelNotLoaded:
    """`pages`: in reach; `most`: that a sequence of any length fills."""
    floor = min(_FLOOR_TOKENS, model.trained_context)
    tokens = max(context, floor)
    need = model.weight_bytes + working + (min(pages_of(tokens), most) + 1) * model.page_bytes
    sentence = (
        f"This model needs {in_words(need)} for {tokens:,} tokens of context; "
        f"{in_words(device.budget_bytes)} are free ({device.source})."
    )
    fitting = min((pages - 1) * PAGE_SIZE, max(config.total_tokens or model.trained_context, floor))
    fitting = min(fitting, model.trained_context)
    if fitting < floor:
        return _NothingFits(f"{sentence} A smaller model, or the same one more strongly quantized, fits.")
    if config.total_tokens is not None:
        return ModelNotLoaded(f"{sentence} Room for {fitting:,} tokens in all fits, and a context of as many.")
    return ModelNotLoaded(f"{sentence} A context of {fitting:,} fits.")


def in_words(count: int) -> str:
    """A number of bytes: GB with one decimal from 1 GB on, else whole MB."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"

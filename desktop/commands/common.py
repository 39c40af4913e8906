"""From a command's arguments to a loaded model, and the model freed again however the command ends.

Knows how a load is asked for, not how it is done. The imports inside the functions keep `inglenook --help` quick: they
bring numpy, the tokenizer and the GPU's library. Runs on the main thread.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from desktop.commands import cache_options, terminal
from engine.errors import InvalidParameter
from engine.request import Delta, Request

if TYPE_CHECKING:
    from engine.config import Estimate
    from engine.loading import LoadedModel, Loader, LoadOptions
    from engine.threaded import ThreadedEngine
    from engine.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A running engine with a model in it, and what it was said to take before it was loaded."""

    engine: ThreadedEngine
    model: LoadedModel
    estimate: Estimate | None = None


def loader() -> Loader:
    """What loads models; tests put a fake here."""
    from engine.loader import load_model

    return load_model


@contextmanager
def session(args: argparse.Namespace) -> Iterator[Session]:
    """An engine with the model of `args`, shut down on leaving. Raises ModelNotFound or ModelNotLoaded.

    With --trace (or INGLENOOK_TRACE) what its threads and the device did is written on leaving.
    """
    options = load_options(args)
    from engine.generate import load_blocking
    from engine.threaded import ThreadedEngine
    from engine.trace import start_trace

    path = args.trace or os.environ.get("INGLENOOK_TRACE")
    trace = start_trace(Path(path) if path else None)
    load = partial(loader(), trace=trace) if trace.enabled else loader()
    line = terminal.LoadLine()
    with terminal.disk_notices():
        engine = ThreadedEngine(load, trace)
        try:
            try:
                model = load_blocking(engine, options, line)
            finally:
                line.finish()
            _loaded(options, model)
            yield Session(engine=engine, model=model, estimate=line.estimate)
        finally:
            engine.shutdown()
            _save(trace)


def _save(trace: Trace) -> None:
    try:
        trace.save()
    except OSError as error:
        terminal.notice(f"The trace cannot be written: {error.strerror or error}. Give another --trace.")


@contextmanager
def loaded_model(args: argparse.Namespace, *, context: int | None = None) -> Iterator[LoadedModel]:
    """The model of `args` without an engine around it: the caller drives its table, on this thread.

    `context` takes the place of --context where a command needs room of its own choice.
    """
    options = load_options(args, context=context)
    line = terminal.LoadLine()
    try:
        model = loader()(options, line, lambda: False)
    finally:
        line.finish()
    try:
        _loaded(options, model)
        yield model
    finally:
        model.table.close()


def answer(running: Session, request: Request) -> closing[Generator[Delta, None, None]]:
    """The request's deltas, to be used in `with`: leaving early, by Ctrl+C too, aborts the request."""
    from engine.generate import stream

    return closing(cast("Generator[Delta, None, None]", stream(running.engine, request)))


def load_options(args: argparse.Namespace, *, context: int | None = None) -> LoadOptions:
    """The load that the arguments ask for; raises ModelNotFound where MODEL names nothing.

    Commands without the options of add_serving() leave all of that to the engine.
    """
    from engine.config import config_from
    from engine.loading import LoadOptions
    from models.library import resolve

    said = {
        "mode": getattr(args, "mode", None),
        "context": args.context if context is None else context,
        "max_sequences": getattr(args, "max_sequences", None),
        "total_tokens": getattr(args, "total_tokens", None),
        "memory_bytes": getattr(args, "memory", None),
        "window": getattr(args, "window", None),
        "sinks": getattr(args, "sinks", None),
    }
    config = config_from({key: value for key, value in said.items() if value is not None})
    return LoadOptions(
        model=resolve(args.model),
        adapter=args.adapter,
        kv_type=args.kv_type,
        kernels=args.kernels,
        tiers=cache_options.tiers(args),
        mode=config.mode,
        context=config.context,
        max_sequences=config.max_sequences,
        total_tokens=config.total_tokens,
        memory_bytes=config.memory_bytes,
        window=config.window,
        sinks=config.sinks,
    )


def trained_context(args: argparse.Namespace) -> int:
    """The longest context that the model of `args` was made for, from its file's description alone."""
    from models.architectures import describe
    from models.gguf import open_gguf
    from models.library import resolve

    with open_gguf(resolve(args.model)) as gguf:
        return describe(gguf).config.context_length


def check_token_ids(ids: Sequence[int], vocab_size: int) -> None:
    """Raise InvalidParameter where the model has no such token."""
    for token in ids:
        if not 0 <= token < vocab_size:
            raise InvalidParameter(f"Token {token} is not in the vocabulary; ids go from 0 to {vocab_size - 1}.")


def template_stops(model: LoadedModel) -> tuple[str, ...]:
    """Texts that end an answer of this model's template; says on stderr where the model brought no template."""
    if model.chat_template.notice is not None:
        terminal.notice(model.chat_template.notice)
    return model.chat_template.stop_texts


def plain_text(text: str) -> str:
    """Text as UTF-8 can carry it: arguments that are not valid text arrive with lone surrogates in them."""
    return text.encode("utf-8", "replace").decode("utf-8")


def new_request_id() -> str:
    """An id that no other request of this process has."""
    return f"cli-{time.monotonic_ns()}"


def _loaded(options: LoadOptions, model: LoadedModel) -> None:
    from models.library import remember_last

    remember_last(options.model)
    if model.software_adapter:
        terminal.notice(f"No usable GPU was found. {model.adapter} computes on the processor, which is slow.")

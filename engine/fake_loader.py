"""A Loader that needs no file and no GPU: a FakeTable that says one readable answer, and a real tokenizer for it.

For the tests of whatever sits on the engine: window, commands, endpoint. The vocabulary is every byte, the pieces of
the answer, and ChatML's tokens. Knows nothing of requests. The loader runs where every loader does, on the background
thread.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Sequence

from engine.config import Estimate
from engine.fake_parts import PAGE_BYTES, Fault, NextToken
from engine.fake_table import FakeTable
from engine.function_table import PAGE_SIZE, TableLimits
from engine.loading import LoadCancelled, LoadedModel, Loader, LoadOptions, LoadProgress
from models.chat_template import ChatTemplate
from models.tokenizer import Tokenizer

ANSWER = (
    "An inglenook is the warm corner beside a hearth, with a bench on either side. People sat there to talk, to read "
    "and to wait for the kettle.\n\nIt was usually:\n\n- built of **brick or stone**,\n- wide enough for two,\n"
    "- the only place in a cold house that nobody wanted to leave. ☕"
)

_NUM_BYTES = 256
_NORMAL, _CONTROL = 1, 3
_DEFAULT_CONTEXT = 2048
_WEIGHT_BYTES = 100 * 2**20
_ESTIMATE = Estimate(weights=_WEIGHT_BYTES, context=200_000_000, working_space=50_000_000, tokens=8192)


def fake_loader(
    *,
    answer: str = ANSWER,
    endless: bool = False,
    delay: int = 1,
    step_s: float = 0.0,
    load_s: float = 0.0,
    error: Exception | None = None,
    faults: Sequence[Fault] = (),
) -> Loader:
    """A loader whose models give `answer`, word by word, to any prompt that does not end inside it.

    endless: begin again instead of ending. delay: steps in flight before one is done. step_s: seconds per step.
    load_s: seconds that a load takes. error: what a load raises at its end. faults: see engine.fake_table.
    """
    pieces = re.findall(r"\s*\S+", answer)
    pending = list(faults)

    def load(
        options: LoadOptions, progress: Callable[[LoadProgress], None], cancelled: Callable[[], bool]
    ) -> LoadedModel:
        started = time.perf_counter()
        _pretend_to_read(load_s, progress, cancelled)
        if error is not None:
            raise error
        metadata = _metadata(pieces)
        tokenizer = Tokenizer.from_metadata(metadata)
        context = options.context or _DEFAULT_CONTEXT
        limits = TableLimits(
            vocab_size=tokenizer.vocab_size,
            context_length=context,
            max_rows=128,
            max_samples=8,
            max_slots=8,
            num_pages=4 * -(-context // PAGE_SIZE),
            page_bytes=PAGE_BYTES,
            window=0,
            sinks=0,
        )
        next_token = _reciter(len(pieces), tokenizer.eos_id or 0, endless)
        return LoadedModel(
            name=options.model.stem,
            path=options.model,
            quantization="Q4_1",
            adapter=options.adapter or "Pretend GPU",
            software_adapter=False,
            context_length=context,
            load_s=time.perf_counter() - started,
            weight_bytes=_WEIGHT_BYTES,
            tokenizer=tokenizer,
            chat_template=ChatTemplate.from_metadata(metadata, tokenizer),
            table=FakeTable(limits, next_token=next_token, delay=delay, step_s=step_s, faults=pending),
            fingerprint=_fingerprint(options),
        )

    return load


def _fingerprint(options: LoadOptions) -> bytes:
    if options.tiers is None:
        return b""
    return hashlib.blake2b(str(options.model).encode(), digest_size=16).digest()


def _pretend_to_read(load_s: float, progress: Callable[[LoadProgress], None], cancelled: Callable[[], bool]) -> None:
    num_windows = 10
    progress(LoadProgress(stage="Reading", done_bytes=0, total_bytes=_WEIGHT_BYTES, estimate=_ESTIMATE))
    for window in range(1, num_windows + 1):
        if cancelled():
            raise LoadCancelled
        time.sleep(load_s / num_windows)
        done_bytes = _WEIGHT_BYTES * window // num_windows
        progress(LoadProgress(stage="Loading weights", done_bytes=done_bytes, total_bytes=_WEIGHT_BYTES))
    progress(LoadProgress(stage="Preparing kernels", done_bytes=_WEIGHT_BYTES, total_bytes=_WEIGHT_BYTES))


def _reciter(num_pieces: int, eos_id: int, endless: bool) -> NextToken:
    """The piece after the last token if that is one, else the first; the end token after the last piece."""

    def next_token(_state: int, last: int) -> int:
        index = last - _NUM_BYTES + 1 if _NUM_BYTES <= last < _NUM_BYTES + num_pieces else 0
        if index < num_pieces:
            return _NUM_BYTES + index
        return _NUM_BYTES if endless else eos_id

    return next_token


def _metadata(pieces: Sequence[str]) -> dict[str, object]:
    alphabet = _byte_alphabet()
    words = ["".join(alphabet[byte] for byte in piece.encode()) for piece in pieces]
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens = [*alphabet, *words, *special]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [_NORMAL] * (len(tokens) - len(special)) + [_CONTROL] * len(special),
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.bos_token_id": tokens.index("<|im_start|>"),
        "tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>"),
        "tokenizer.ggml.add_bos_token": False,
    }


def _byte_alphabet() -> list[str]:
    """The printable character by which byte-level BPE writes each byte (GPT-2's convention), by byte."""
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = iter(range(0x100, 0x200))
    return [chr(byte if byte in plain else next(moved)) for byte in range(_NUM_BYTES)]

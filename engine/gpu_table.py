"""The function table of a model on a GPU: checks every index, numbers the steps, and speaks the engine's errors.

Thin by intent: how a step runs is models/runner.py's business. The engine's background thread.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from engine.errors import DeviceFailed, EngineError, OutOfMemory
from engine.function_table import FROM_DEVICE, MAX_MOVED_PAGES, RetiredStep, Row, Sample, TableLimits
from engine.gpu_logits import check_sample, draw_parts, fill_logit_table, read_logprobs
from engine.request import GREEDY
from models.runner import Part, Runner
from shaders import step_table
from shaders.errors import BindingError, OutOfDeviceMemory, ShaderError, SourceError

logger = logging.getLogger(__name__)

_BANDWIDTH_BYTES = 64 << 20


class GpuTable:
    """Implements engine.function_table.FunctionTable; `close_model` frees what the loader allocated."""

    def __init__(self, runner: Runner, limits: TableLimits, close_model: Callable[[], None]) -> None:
        self._runner = runner
        self._limits = limits
        self._close_model = close_model
        self._closed = False
        self._last_submitted = 0
        self._last_retired = 0
        self._rows: Sequence[Row] = ()
        self._sampled_rows: Sequence[int] = ()
        self._samples: Sequence[Sample] = ()
        self._plain = True  # whether all of _samples are
        self._page_copies: Sequence[tuple[int, int]] = ()
        self._move: tuple[Sequence[int], bytes | None] | None = None  # pages, and what to load into them
        self._advanced: tuple[Sequence[Row], Sequence[Sample]] = ((), ())
        self._asked: deque[Sequence[Sample]] = deque()  # of each step in flight that brings logprobs

    @property
    def limits(self) -> TableLimits:
        return self._limits

    @property
    def last_submitted(self) -> int:
        return self._last_submitted

    @property
    def in_flight(self) -> int:
        return self._runner.in_flight

    @property
    def backend(self) -> str:
        """The graphics API underneath."""
        return self._runner.gpu.adapter.backend

    @property
    def waited_ns(self) -> int:
        """Time spent waiting for the device so far, in end_forward() and retire()."""
        return self._runner.waited_ns

    @property
    def dispatches_last_step(self) -> int:
        """Dispatches of the newest submitted step."""
        return self._runner.dispatches_last_step

    @property
    def gpu_bytes(self) -> int:
        """The most device memory that was held at once."""
        return self._runner.gpu.peak_bytes

    def time_steps(self, on_span: Callable[[str, int, int], None]) -> None:
        """Report each step's time on the device as (label, start_ns, end_ns) on the host's clock, for a trace."""
        with _translated():
            self._runner.time_steps(on_span)

    def set_pages(self, slot: int, first: int, pages: Sequence[int]) -> None:
        limits = self._limits
        _require(0 <= slot < limits.max_slots, "slot", slot)
        _require(0 <= first and 16 * (first + len(pages)) < limits.context_length + 16, "page table entry", first)
        for page in pages:
            _require(0 <= page < limits.num_pages, "page", page)
        if pages:
            with _translated():
                self._runner.set_pages(slot, first, pages)

    def set_counts(self, slot: int, prompt_ids: Sequence[int], generated_ids: Sequence[int]) -> None:
        limits = self._limits
        _require(0 <= slot < limits.max_slots, "slot", slot)
        for ids in (prompt_ids, generated_ids):
            if ids and not (0 <= min(ids) and max(ids) < limits.vocab_size):
                raise ValueError(f"counted tokens out of range: {min(ids)} to {max(ids)}")
        with _translated():
            self._runner.set_counts(slot, prompt_ids, generated_ids)

    def begin_forward(self) -> None:
        _require(self.in_flight < self._limits.max_in_flight, "steps in flight", self.in_flight)
        self._rows = self._sampled_rows = self._samples = self._page_copies = ()
        self._plain = True
        self._move = None

    def copy_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        for pair in pairs:
            for page in pair:
                _require(0 <= page < self._limits.num_pages, "page", page)
        self._page_copies = [*self._page_copies, *pairs]

    def load_pages(self, pages: Sequence[int], data: bytes) -> None:
        self._check_move(pages)
        _require(len(data) == self._limits.page_bytes * len(pages), "bytes of the pages", len(data))
        self._move = pages, data

    def save_pages(self, pages: Sequence[int]) -> None:
        self._check_move(pages)
        self._move = pages, None

    def blank_tail(self, page: bytes, num_tokens: int) -> bytes:
        _require(len(page) == self._limits.page_bytes and 0 < num_tokens, "page to be blanked", len(page))
        return self._runner.blank_tail(page, num_tokens)

    def embed(self, rows: Sequence[Row]) -> None:
        limits = self._limits
        _require(0 < len(rows) <= limits.max_rows, "number of rows", len(rows))
        vocab, context, slots = limits.vocab_size, limits.context_length, limits.max_slots
        for row in rows:
            token = row.token
            known = 0 <= token < vocab or token == FROM_DEVICE
            if not (known and 0 <= row.position < context and 0 <= row.slot < slots):
                raise ValueError(f"out of range: {row}")
        self._rows = rows

    def prefill(self) -> None:
        """Nothing to do: the layers run in every step, and each kernel picks its tile by the number of rows."""

    def decode(self) -> None:
        """As prefill()."""

    def logits(self, rows: Sequence[int]) -> None:
        _require(0 < len(rows) <= self._limits.max_samples, "number of samples", len(rows))
        if min(rows) < 0 or max(rows) >= len(self._rows):
            raise ValueError(f"sampled rows out of range: {rows}")
        self._sampled_rows = rows

    def sample(self, samples: Sequence[Sample]) -> None:
        _require(len(samples) == len(self._sampled_rows), "number of samples", len(samples))
        slots, plain = self._limits.max_slots, True
        for sample, row in zip(samples, self._sampled_rows, strict=True):
            if sample.row != row or not 0 <= sample.slot < slots:
                raise ValueError(f"out of range: {sample}")
            if not sample.is_plain:
                plain = False
                check_sample(sample, self._limits.vocab_size)
        self._samples = samples
        self._plain = plain

    def end_forward(self) -> int:
        if self._move is not None:
            self._submit_move(*self._move)
        else:
            self._submit_rows()
        self._last_submitted += 1
        return self._last_submitted

    def _submit_move(self, pages: Sequence[int], data: bytes | None) -> None:
        """Leaves _advanced alone: the step's table on the device stays as the last step of rows left it."""
        if self._rows or self._page_copies:
            raise ValueError("a step that moves pages does nothing else")
        with _translated():
            if data is None:
                self._runner.submit_save(pages)
            else:
                self._runner.submit_load(pages, data)
        self._move = None

    def _submit_rows(self) -> None:
        _require(len(self._rows) > 0, "number of rows", 0)
        parts: list[Part] = ["embed", "layers"]
        if self._sampled_rows:
            parts.append("head")
        if self._plain and self._samples:
            parts.append("sample")
        elif self._samples:
            parts += draw_parts(self._samples)
            fill_logit_table(self._runner.logit_table, self._samples)
        upload = not (self._plain and _follows(self._rows, self._samples, *self._advanced))
        if upload:
            self._fill_table()
        self._advanced = ((), ())  # so that nothing follows on a step that is refused
        with _translated():
            self._runner.submit(parts, upload=upload, pages=self._page_copies)
        self._advanced = (self._rows, self._samples) if self._plain and self._samples else ((), ())
        if "logprobs" in parts:
            self._asked.append(self._samples)

    def retire(self, *, wait: bool) -> RetiredStep | None:
        with _translated():
            retired = self._runner.retire(wait=wait)
        if retired is None:
            return None
        self._last_retired += 1
        if retired.records is None:
            return RetiredStep(self._last_retired, retired.tokens, pages=retired.pages)
        logprobs = read_logprobs(retired.records, self._asked.popleft(), self._limits.vocab_size)
        return RetiredStep(self._last_retired, retired.tokens, logprobs)

    def read_logits(self, num_rows: int) -> npt.NDArray[np.float32]:
        """Logits of the newest step's logits() rows, f32 [num_rows, vocab]; waits for the device."""
        _require(0 < num_rows <= len(self._sampled_rows), "number of rows", num_rows)
        with _translated():
            return self._runner.read_logits(num_rows)[:, : self._limits.vocab_size]

    def measure_bandwidth_gb_s(self) -> float:
        """Gigabytes per second of copies on the device, bytes read and bytes written both counted; best of five."""
        gpu = self._runner.gpu
        with _translated():
            source, target = (gpu.storage("bandwidth", _BANDWIDTH_BYTES) for _ in range(2))
            best = 0.0
            for _ in range(6):  # the first one clears the buffers
                encoder = gpu.device.create_command_encoder()
                encoder.copy_buffer_to_buffer(source.handle, 0, target.handle, 0, _BANDWIDTH_BYTES)
                started = time.perf_counter()
                gpu.device.queue.submit([encoder.finish()])
                gpu.wait()
                best = max(best, 2 * _BANDWIDTH_BYTES / (time.perf_counter() - started) / 1e9)
            gpu.release([source, target])
        return best

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            with _translated():
                while self._runner.in_flight:
                    self._runner.retire(wait=True)
        except DeviceFailed:
            logger.info("The device was gone before the model was closed")
        self._close_model()

    def _check_move(self, pages: Sequence[int]) -> None:
        if self._move is not None or self._rows or self._page_copies:
            raise ValueError("a step that moves pages does nothing else")
        _require(0 < len(set(pages)) == len(pages) <= MAX_MOVED_PAGES, "pages to be moved", pages)
        for page in pages:
            _require(0 <= page < self._limits.num_pages, "page", page)

    def _fill_table(self) -> None:
        """Rows and samples as the kernels read them. A row without a sample's parameters is greedy and unused."""
        table = self._runner.table
        table.begin(len(self._rows), len(self._sampled_rows))
        for index, row in enumerate(self._rows):
            token = step_table.FROM_DEVICE if row.token == FROM_DEVICE else row.token
            table.set_row(index, token, row.position, row.slot)
        for index, sampled in enumerate(self._sampled_rows):
            if not self._samples:
                table.set_logits_row(index, sampled)
                continue
            sample = self._samples[index]
            params = sample.params if sample.forced is None else GREEDY  # the cheapest to draw for nothing
            table.set_sample(
                index,
                row=sampled,
                slot=sample.slot,
                position=sample.position,
                temperature=params.temperature,
                top_k=params.top_k,
                top_p=params.top_p,
                min_p=params.min_p,
                seed=params.seed,
                logits_row=index,
                forced=sample.forced,
            )


def _follows(
    rows: Sequence[Row], samples: Sequence[Sample], last_rows: Sequence[Row], last_samples: Sequence[Sample]
) -> bool:
    """Whether a step is the last one moved on by a token in every row: then advance.wgsl has made its table already."""
    if len(rows) != len(last_rows) or len(samples) != len(last_samples) or not samples:
        return False
    for row, last in zip(rows, last_rows, strict=True):
        if row.token != FROM_DEVICE or row.position != last.position + 1 or row.slot != last.slot:
            return False
    for sample, before in zip(samples, last_samples, strict=True):
        if sample.position != before.position + 1 or sample.row != before.row or sample.slot != before.slot:
            return False
        if sample.params is not before.params:
            return False
    return True


def _require(condition: bool, what: str, value: object) -> None:
    if not condition:
        raise ValueError(f"{what} out of range: {value}")


@contextmanager
def _translated() -> Iterator[None]:
    """Only a lost device is a failed one: one that has no room for a buffer, or refused a kernel, goes on."""
    try:
        yield
    except OutOfDeviceMemory as error:
        raise OutOfMemory(str(error)) from error
    except (BindingError, SourceError) as error:
        raise EngineError(str(error)) from error
    except ShaderError as error:
        raise DeviceFailed(str(error)) from error

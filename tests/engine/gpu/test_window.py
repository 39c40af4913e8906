"""SmolLM2 over a window of 64 tokens and 4 sinks: 600 tokens in memory for 416, and float64 with the same mask."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from engine.engine import Engine
from engine.function_table import PAGE_SIZE, Row
from engine.gpu_table import GpuTable
from engine.loader import load_model
from engine.loading import LoadedModel, LoadOptions
from engine.request import Request
from engine.window import NO_PAGE, Window
from models.gguf import open_gguf
from tests.engine.gpu.conftest import read_goldens, table_of
from tests.numpy_model import NumpyModel

WINDOW, SINKS = 64, 4
NUM_TOKENS = 600
NUM_PAGES = 26
"""In all, less than the sequence's 38; each test uses some of them."""
WATCHED = (63, 64, 80, 128, 300, 511, 512, 598, 599)
Logits = npt.NDArray[np.float32]


def load(path: Path, **options: int) -> LoadedModel:
    wanted = LoadOptions(
        model=path, context=1024, kv_type="f32", total_tokens=NUM_PAGES * PAGE_SIZE, mode="interactive", **options
    )
    return load_model(wanted, lambda progress: None, lambda: False)


@pytest.fixture(scope="module")
def model(starter_path: Path) -> Iterator[LoadedModel]:
    loaded = load(starter_path, window=WINDOW, sinks=SINKS, max_sequences=3)
    yield loaded
    loaded.table.close()


@pytest.fixture(scope="module")
def ids() -> list[int]:
    goldens = read_goldens()
    tokens = [token for golden in goldens.values() for token in golden.ids]
    return (tokens * 10)[:NUM_TOKENS]


class Walk:
    """One sequence through a slot by hand, in as few pages as the window allows: each is used again once it left."""

    def __init__(self, table: GpuTable, slot: int, free: Sequence[int]) -> None:
        self.table = table
        self.slot = slot
        self.window = Window(table.limits)
        self.free = list(free)
        self.pages: list[int] = []

    def rows(self, ids: Sequence[int], start: int, end: int) -> list[Row]:
        """The rows of a chunk, with the pages for it."""
        for index in self.window.leaving(self.pages, start):
            self.free.append(self.pages[index])
            self.pages[index] = NO_PAGE
        first = len(self.pages)
        while len(self.pages) * PAGE_SIZE < end:
            self.pages.append(self.free.pop(0))
        self.table.set_pages(self.slot, first, self.pages[first:])
        return [Row(ids[position], position, self.slot) for position in range(start, end)]


def run(table: GpuTable, rows: Sequence[Row], slot: int = 0) -> dict[int, Logits]:
    wanted = [index for index, row in enumerate(rows) if row.position in WATCHED and row.slot == slot]
    table.begin_forward()
    table.embed(rows)
    table.prefill()
    if wanted:
        table.logits(wanted)
    table.end_forward()
    logits = table.read_logits(len(wanted)) if wanted else None
    table.retire(wait=True)
    return {} if logits is None else {rows[which].position: logits[at] for at, which in enumerate(wanted)}


def in_chunks(table: GpuTable, ids: Sequence[int], chunk: int, pages: Sequence[int]) -> dict[int, Logits]:
    walk, found = Walk(table, 0, pages), {}
    for start in range(0, len(ids), chunk):
        found |= run(table, walk.rows(ids, start, min(start + chunk, len(ids))))
    return found


@pytest.fixture(scope="module")
def expected(model: LoadedModel, ids: list[int]) -> dict[int, Logits]:
    return in_chunks(table_of(model), ids, 128, range(NUM_PAGES))


def check(found: dict[int, Logits], expected: dict[int, Logits], model: LoadedModel) -> None:
    for position, logits in found.items():
        if model.software_adapter:
            np.testing.assert_array_equal(logits, expected[position], f"at position {position}")
        else:
            np.testing.assert_allclose(logits, expected[position], atol=1e-2, rtol=0)


def test_logits_are_those_of_float64_with_the_same_mask(expected, ids: list[int], starter_path: Path) -> None:
    assert sorted(expected) == sorted(WATCHED)
    with open_gguf(starter_path) as gguf:
        truth = NumpyModel(gguf, WINDOW, SINKS).logits(ids)
    for position, logits in expected.items():
        np.testing.assert_allclose(logits, truth[position], atol=2e-3, rtol=0, err_msg=f"at position {position}")


@pytest.mark.parametrize(("chunk", "num_pages"), [(50, 10), (7, 7)])
def test_same_bits_whatever_the_chunks_and_pages(chunk: int, num_pages: int, expected, model, ids) -> None:
    pages = np.random.default_rng(chunk).permutation(NUM_PAGES)[:num_pages].tolist()
    found = in_chunks(table_of(model), ids, chunk, pages)
    assert sorted(found) == sorted(WATCHED)
    check(found, expected, model)


def test_same_bits_among_neighbours_that_decode(expected, model: LoadedModel, ids: list[int]) -> None:
    """Chunks of 31 behind a row of each of two others, which have windows of their own."""
    table = table_of(model)
    own = Walk(table, 0, range(10))
    others = [Walk(table, slot, range(3 + 7 * slot, 10 + 7 * slot)) for slot in (1, 2)]
    found = {}
    for step, start in enumerate(range(0, len(ids), 31)):
        rows = [row for walk in others for row in walk.rows(ids[::-1], step, step + 1)]
        rows += own.rows(ids, start, min(start + 31, len(ids)))
        found |= run(table, rows)
    assert sorted(found) == sorted(WATCHED)
    check(found, expected, model)


def test_the_engine_answers_the_same_alone_after_giving_way_and_beside_others(model: LoadedModel, ids) -> None:
    """Prompt and answer are longer than all memory; nobody remembers anything."""

    def answers(prompts: Sequence[Sequence[int]], preempt_every: int = 0) -> list[list[int]]:
        engine = Engine(model.table, model.tokenizer)
        for name, prompt in enumerate(prompts):
            request = Request(
                request_id=str(name), prompt_ids=tuple(prompt), max_tokens=20, ignore_eos=True, use_cache=False
            )
            engine.add_request(request)
        tokens: dict[str, list[int]] = {str(name): [] for name in range(len(prompts))}
        count = 0
        while engine.has_work:
            engine.step()
            engine.state.check_integrity()
            count += 1
            holders = [*engine.state.prefilling, *engine.state.running]
            if preempt_every and holders and count % preempt_every == 0 and not engine.state.num_preempted:
                engine.state.preempt(holders[-1])
            for emission in engine.take_outbox():
                assert emission.error is None
                tokens[emission.request_id] += emission.token_ids
        assert not preempt_every or engine.state.num_preempted == 1
        return list(tokens.values())

    long = ids[: NUM_PAGES * PAGE_SIZE + 4]
    [alone] = answers([long])
    assert len(alone) == 20
    assert answers([long], preempt_every=5) == [alone]
    assert answers([ids[50:200], long, ids[:60]])[1] == alone

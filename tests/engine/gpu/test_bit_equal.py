"""A row's logits have the same bits whatever shares its step: cuts of the prompt, neighbours, slots, pages.

On a software adapter, whose arithmetic is the same for every lane. Elsewhere they may differ by roundings.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from engine.function_table import PAGE_SIZE, Row
from engine.gpu_table import GpuTable
from tests.engine.gpu.conftest import DATA, read_goldens, table_of

NUM_TOKENS = 80
NUM_PAGES = NUM_TOKENS // PAGE_SIZE
SLOTS = 8
WATCHED = (0, 1, 6, 7, 8, 15, 16, 17, 63, 64, 76, 77, 78, 79)
"""Positions whose logits are compared: ends of tiles, of pages and of chunks."""

CASES = ("starter-fused", "tiny-BF16-fused", "tiny-Q8_0-fused", "tiny-Q4_0-plain")


@dataclass(frozen=True)
class Subject:
    """A model's table, 80 tokens for it, and the logits of WATCHED when they are all of one step."""

    table: GpuTable
    ids: list[int]
    expected: dict[int, npt.NDArray[np.float32]]
    exact: bool

    def check(self, found: dict[int, npt.NDArray[np.float32]], positions: Iterable[int] = WATCHED) -> None:
        assert sorted(found) == sorted(positions)
        for position, logits in found.items():
            if self.exact:
                np.testing.assert_array_equal(logits, self.expected[position], f"at position {position}")
            else:
                np.testing.assert_allclose(logits, self.expected[position], atol=1e-2, rtol=0)


def run_step(table: GpuTable, rows: Sequence[Row], wanted: Sequence[int] = ()) -> npt.NDArray[np.float32] | None:
    """Run a step to its end; logits of the wanted rows."""
    table.begin_forward()
    table.embed(rows)
    if len({row.slot for row in rows}) == len(rows):
        table.decode()
    else:
        table.prefill()
    if wanted:
        table.logits(wanted)
    table.end_forward()
    logits = table.read_logits(len(wanted)) if wanted else None
    table.retire(wait=True)
    return logits


def feed(
    table: GpuTable, ids: Sequence[int], chunk: int, *, slot: int = 0, first: int = 0
) -> dict[int, npt.NDArray[np.float32]]:
    """Run a sequence from position `first` on in chunks; logits of the watched positions."""
    found = {}
    for start in range(first, len(ids), chunk):
        rows = [Row(ids[position], position, slot) for position in range(start, min(start + chunk, len(ids)))]
        wanted = [index for index, row in enumerate(rows) if row.position in WATCHED]
        logits = run_step(table, rows, wanted)
        for index, which in enumerate(wanted):
            assert logits is not None
            found[rows[which].position] = logits[index]
    return found


@pytest.fixture(scope="module", params=CASES)
def subject(request: pytest.FixtureRequest, model_of: Callable, starter_path: Path) -> Subject:
    which, _, rest = request.param.partition("-")
    if which == "starter":
        model = model_of(starter_path, kv_type="f16")
        ids = read_goldens()["unicode"].ids
    else:
        kind, _, kernels = rest.partition("-")
        model = model_of(DATA / "gguf_llama" / f"tiny-{kind}.gguf", kernels=kernels)
        ids = json.loads((DATA / "gguf_llama" / "golden.json").read_text())["files"][kind]["sequences"][2]["ids"]
    table = table_of(model)
    table.set_pages(0, 0, range(NUM_PAGES))
    expected = feed(table, ids[:NUM_TOKENS], NUM_TOKENS)
    return Subject(table, ids[:NUM_TOKENS], expected, model.software_adapter)


@pytest.mark.parametrize("chunk", [1, 7, 8, 16, 77])
def test_prompt_cut_into_chunks(chunk: int, subject: Subject) -> None:
    subject.table.set_pages(0, 0, range(NUM_PAGES))
    subject.check(feed(subject.table, subject.ids, chunk))


def test_pages_in_any_order(subject: Subject) -> None:
    """Over pages whose every byte is set, so that what is read too far is no number."""
    kv = subject.table._runner._kv
    for buffer in (*kv.keys, *kv.values):
        subject.table._runner.gpu.write(buffer, 0, np.full(buffer.size, 255, np.uint8))
    pages = random.Random(5).sample(range(subject.table.limits.num_pages), NUM_PAGES)
    subject.table.set_pages(3, 0, pages)
    subject.check(feed(subject.table, subject.ids, NUM_TOKENS, slot=3))


def test_one_of_eight_that_decode(subject: Subject) -> None:
    """The sequence decodes its last 8 tokens among 7 others of other lengths; its row moves from step to step."""
    table, ids = subject.table, subject.ids
    prompts = _neighbours(subject)
    for slot, prompt in prompts.items():
        feed(table, prompt, len(prompt), slot=slot)
    own = 5
    feed(table, ids[:72], 72, slot=own)
    found = {}
    for step in range(8):
        rows = [Row(prompt[step], len(prompt) + step, slot) for slot, prompt in prompts.items()]
        rows.insert(step, Row(ids[72 + step], 72 + step, own))
        logits = run_step(table, rows, range(SLOTS))
        assert logits is not None
        if 72 + step in WATCHED:
            found[72 + step] = logits[step]
    subject.check(found, [position for position in WATCHED if position >= 72])


def test_chunk_behind_anothers_rows(subject: Subject) -> None:
    """In one step: three rows of a neighbour, then the whole sequence, so that it starts inside a tile."""
    neighbour = _neighbours(subject)[2][:3]
    rows = [Row(token, position, 2) for position, token in enumerate(neighbour)]
    rows += [Row(token, position, 5) for position, token in enumerate(subject.ids)]
    logits = run_step(subject.table, rows, [len(neighbour) + position for position in WATCHED])
    assert logits is not None
    subject.check(dict(zip(WATCHED, logits, strict=True)))


def _neighbours(subject: Subject) -> dict[int, list[int]]:
    """Seven sequences of 9 to 15 other tokens in all slots but 5, each slot with pages of its own."""
    draw = random.Random(11)
    for slot in range(SLOTS):
        subject.table.set_pages(slot, 0, range(slot * NUM_PAGES, (slot + 1) * NUM_PAGES))
    vocab_size = subject.table.limits.vocab_size
    return {slot: [draw.randrange(vocab_size) for _ in range(9 + slot)] for slot in range(SLOTS) if slot != 5}

"""Real models on the graphics adapter, each loaded once for all tests of a run, and what they say of fixed prompts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt
import pytest

from engine.function_table import PAGE_SIZE, Row
from engine.gpu_table import GpuTable
from engine.loader import load_model
from engine.loading import KernelSet, KvType, LoadedModel, LoadOptions
from engine.scoring import score
from models.library import starter

DATA = Path(__file__).parents[2] / "data"
CONTEXT = 1024
NUM_GREEDY = 48

Logits = npt.NDArray[np.float32]
GetModel = Callable[..., LoadedModel]


@dataclass(frozen=True)
class Golden:
    """One prompt of SmolLM2, what follows it, and the logits after it, all from float32 weights."""

    name: str
    ids: list[int]
    top_ids: list[int]
    top_logits: list[float]
    logsumexp: float
    greedy: list[int]
    margins: list[float]
    last_logits: Logits | None


def load_quietly(path: Path, *, kernels: KernelSet | None = None, kv_type: KvType = "f32") -> LoadedModel:
    options = LoadOptions(model=path, kernels=kernels, kv_type=kv_type, context=_context(path))
    return load_model(options, lambda progress: None, lambda: False)


def table_of(model: LoadedModel) -> GpuTable:
    return cast(GpuTable, model.table)


def last_rows(table: GpuTable, ids: list[int], count: int) -> Logits:
    """Logits after each of the last `count` tokens. Unlike score(), computes none of the others, which take long."""
    table.set_pages(0, 0, range(-(-len(ids) // PAGE_SIZE)))
    found: list[Logits] = []
    for first in range(0, len(ids), table.limits.max_rows):
        positions = range(first, min(first + table.limits.max_rows, len(ids)))
        wanted = [position - first for position in positions if position >= len(ids) - count]
        table.begin_forward()
        table.embed([Row(ids[position], position, 0) for position in positions])
        table.prefill()
        if wanted:
            table.logits(wanted)
        table.end_forward()
        if wanted:
            found.append(table.read_logits(len(wanted)))
        table.retire(wait=True)
    return np.concatenate(found)


def _context(path: Path) -> int | None:
    return CONTEXT if path == starter() else None


@pytest.fixture(scope="session")
def starter_path() -> Path:
    path = starter()
    assert path is not None, "the starter model's package is not installed"
    return path


@pytest.fixture(scope="session")
def model_of() -> Iterator[GetModel]:
    """model_of(path, kernels=..., kv_type=...): that model, loaded on first use and kept."""
    loaded: dict[tuple[Path, KernelSet | None, KvType], LoadedModel] = {}

    def get(path: Path, *, kernels: KernelSet | None = None, kv_type: KvType = "f32") -> LoadedModel:
        key = (path, kernels, kv_type)
        if key not in loaded:
            loaded[key] = load_quietly(path, kernels=kernels, kv_type=kv_type)
        return loaded[key]

    yield get
    for model in loaded.values():
        model.table.close()


@pytest.fixture(scope="session")
def scored(model_of: GetModel, starter_path: Path, goldens: dict[str, Golden]) -> Callable[[str, KvType], Logits]:
    """scored(prompt, kv_type): SmolLM2's logits after the prompt and after each golden token but the last, f32 [48,
    vocab]. Each pass runs once."""

    @cache
    def get(name: str, kv_type: KvType) -> Logits:
        golden = goldens[name]
        table = table_of(model_of(starter_path, kv_type=kv_type))
        return last_rows(table, golden.ids + golden.greedy[:-1], NUM_GREEDY)

    return get


@cache
def read_goldens() -> dict[str, Golden]:
    from safetensors.numpy import load_file

    folder = DATA / "smollm2"
    vectors = load_file(folder / "logits.safetensors")
    prompts = json.loads((folder / "goldens.json").read_text(encoding="utf-8"))["prompts"]
    return {
        prompt["name"]: Golden(
            name=prompt["name"],
            ids=prompt["ids"],
            top_ids=prompt["last_top50_ids"],
            top_logits=prompt["last_top50_logits"],
            logsumexp=prompt["last_logsumexp"],
            greedy=prompt["greedy"],
            margins=prompt["greedy_margins"],
            last_logits=vectors.get(f"{prompt['name']}.last_logits"),
        )
        for prompt in prompts
    }


@pytest.fixture(scope="session")
def goldens() -> dict[str, Golden]:
    return read_goldens()


@pytest.fixture(scope="session")
def rows_of() -> Callable[[LoadedModel, list[int]], Logits]:
    """rows_of(model, ids): logits after every token."""
    return lambda model, ids: score(table_of(model), ids)

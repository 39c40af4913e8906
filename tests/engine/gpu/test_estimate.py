"""What a load is said to take, against what the device counts: never less, and not much more."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from desktop import cli
from engine import loader
from engine.config import MARGIN_BYTES, Estimate
from engine.function_table import MAX_IN_FLIGHT, MAX_MOVED_PAGES, Row, Sample
from engine.gpu_table import GpuTable
from engine.load_plan import estimate_load
from engine.loader import load_model
from engine.loading import LoadOptions, LoadProgress
from engine.request import GREEDY, SamplingParams
from tests.engine.gpu.conftest import DATA, table_of

TINY = DATA / "gguf_llama" / "tiny-F16.gguf"


@contextmanager
def load(options: LoadOptions) -> Iterator[tuple[GpuTable, Estimate]]:
    """A model, and what was said of it before its weights moved."""
    events: list[LoadProgress] = []
    model = load_model(options, events.append, lambda: False)
    try:
        [(at, estimate)] = [(index, event.estimate) for index, event in enumerate(events) if event.estimate]
        assert at < next(index for index, event in enumerate(events) if event.stage == "Loading weights")
        yield table_of(model), estimate
    finally:
        model.table.close()


def use_everything(table: GpuTable) -> None:
    """Have it take the buffers that it takes only when first asked."""
    penalized = SamplingParams(temperature=0.0, frequency_penalty=0.5)
    table.set_pages(0, 0, [0, 1])
    table.set_counts(0, [1, 2], [])
    table.begin_forward()
    table.copy_pages([(0, 1)])
    table.embed([Row(1, 0, 0), Row(2, 1, 0)])
    table.prefill()
    table.logits([0, 1])
    table.sample([Sample(0, 0, 1, GREEDY, top_logprobs=3, forced=2), Sample(1, 0, 2, penalized, top_logprobs=20)])
    table.end_forward()
    assert table.retire(wait=True).logprobs
    pages = range(MAX_MOVED_PAGES)
    for _ in range(MAX_IN_FLIGHT):
        table.begin_forward()
        table.save_pages(pages)
        table.end_forward()
    data = [table.retire(wait=True).pages for _ in range(MAX_IN_FLIGHT)]
    table.begin_forward()
    table.load_pages(pages, data[0])
    table.end_forward()
    table.retire(wait=True)


@pytest.mark.parametrize(
    "options",
    [
        {"context": 512},
        {"context": 2048, "kv_type": "f32", "mode": "interactive"},
        {"context": 512, "mode": "server", "max_sequences": 9},
        {"context": 1024, "total_tokens": 5000, "max_sequences": 100, "kernels": "plain"},
        {},
    ],
    ids=str,
)
def test_estimate_of_the_starter_model(options: dict, starter_path: Path) -> None:
    check(LoadOptions(model=starter_path, **options))


@pytest.mark.parametrize("kernels", ["fused", "plain"])
def test_estimate_of_a_tiny_model(kernels: str) -> None:
    check(LoadOptions(model=TINY, kernels=kernels))


def test_doctor_says_it_without_loading(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "_build", None)
    assert cli.main(["doctor", str(TINY), "--json", "--kv-type", "f32"]) == 0
    told = json.loads(capsys.readouterr().out)["model"]
    expected = estimate_load(LoadOptions(model=TINY, kv_type="f32")).estimate
    assert told["estimate"]["total_bytes"] == expected.total == sum(told["estimate"].values()) // 2
    assert told["context_length"] == 512
    assert cli.main(["doctor", str(TINY), "--json", "--memory", "60MB"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["model"] is None
    assert "60 MB are free (as you said)" in json.loads(out)["problems"][0]
    assert "60 MB are free (as you said)" in err


def check(options: LoadOptions) -> None:
    with load(options) as (table, estimate):
        use_everything(table)
        actual, limits = table.gpu_bytes, table.limits
    assert actual <= estimate.total <= 1.05 * actual + MARGIN_BYTES
    assert estimate.tokens == 16 * limits.num_pages
    assert estimate_load(options).estimate == estimate

"""`logits`, `bench` and `doctor`: what they write, on a pretend device."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from desktop import cli
from desktop.commands import common, doctor, terminal
from engine.fake_loader import fake_loader
from engine.fake_table import FakeTable
from engine.function_table import Row, Sample
from engine.request import GREEDY

TINY = Path(__file__).parents[1] / "data" / "gguf_llama" / "tiny-F16.gguf"
TINY_CONTEXT = 512


class Extras(FakeTable):
    """A FakeTable with what `bench` and `logits` ask beyond serving."""

    backend = "Pretend"
    waited_ns = 0
    dispatches_last_step = 16
    gpu_bytes = 2**20
    rows: Sequence[Row] = ()
    draws = False

    def measure_bandwidth_gb_s(self) -> float:
        return 50.0

    def embed(self, rows: Sequence[Row]) -> None:
        super().embed(rows)
        self.rows = rows

    def read_logits(self, num_rows: int) -> npt.NDArray[np.float32]:
        return np.full((num_rows, self.limits.vocab_size), self.rows[0].position, dtype=np.float32)


class Scoring(Extras):
    """FakeTable insists on samples after logits, so this one draws them itself."""

    def logits(self, rows: Sequence[int]) -> None:
        super().logits(rows)
        self.sample([Sample(row, 0, self.rows[row].position + 1, GREEDY) for row in rows])


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGLENOOK_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(terminal, "quiet_logs", lambda: None)


def use_table(monkeypatch: pytest.MonkeyPatch, kind: type[Extras]) -> list[Extras]:
    """Load models with a table of this kind; the list receives each."""
    tables: list[Extras] = []
    load = fake_loader()

    def loader(*args):  # type: ignore[no-untyped-def]
        loaded = load(*args)
        tables.append(kind(loaded.table.limits))
        return replace(loaded, table=tables[-1])

    monkeypatch.setattr(common, "loader", lambda: loader)
    return tables


def run(*argv: object) -> int:
    return cli.main(list(map(str, argv)))


def test_logits_writes_the_file_that_was_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = use_table(monkeypatch, Scoring)
    out = tmp_path / "numbers"
    assert run("logits", TINY, "--token-ids", ",".join(["5"] * 20), "--out", out) == 0
    logits = np.load(out)
    assert (logits.dtype, logits.shape) == (np.float32, (20, tables[0].limits.vocab_size))
    assert logits[:, 0].tolist() == [0] * 8 + [8] * 8 + [16] * 4
    assert tables[0].closed
    assert capsys.readouterr().out == ""


def test_logits_says_no_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = use_table(monkeypatch, Scoring)
    cases = {
        "no folder": ("1", tmp_path / "absent" / "x.npy", ()),
        "vocabulary": ("1,99999", tmp_path / "x.npy", ()),
        "do not fit": (",".join(["1"] * 40), tmp_path / "x.npy", ("--context", 32)),
        "directory": ("1", tmp_path, ()),
    }
    for words, (tokens, out, options) in cases.items():
        assert run("logits", TINY, "--token-ids", tokens, "--out", out, *options) == 1
        last = capsys.readouterr().err.splitlines()[-1]
        assert last.startswith("inglenook: ") and words in last.lower()
    assert all(table.closed for table in tables)


def test_bench_json_has_the_promised_fields(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = use_table(monkeypatch, Extras)
    assert run("bench", TINY, "--json", "--prefill", "32", "--context", "64,128", "--batch", "2") == 0
    out, _ = capsys.readouterr()
    value = json.loads(out)
    assert list(value) == [
        *("adapter", "backend", "model", "weight_bytes", "startup_s", "prefill", "decode"),
        *("ttft_ms", "peak_gpu_bytes", "bandwidth"),
    ]
    assert list(value["prefill"][0]) == ["tokens", "tokens_per_s"]
    assert [(row["batch"], row["context"]) for row in value["decode"]] == [(1, 64), (1, 128), (2, 64)]
    assert list(value["decode"][0]) == [
        *("batch", "context", "tokens_per_s", "dispatches_per_token"),
        *("host_ms_per_token", "host_ms_per_token_contended"),
    ]
    assert list(value["bandwidth"]) == ["achieved_gb_s", "ceiling_gb_s"]
    assert (value["backend"], value["peak_gpu_bytes"]) == ("Pretend", 2**20)
    assert tables[0].closed


def test_bench_measures_a_kept_prompt_where_it_is_asked_to(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use_table(monkeypatch, Extras)
    options = ("--prefill", "32", "--context", "64", "--batch", "1", "--kept", "100")
    assert run("bench", TINY, "--json", *options) == 0
    kept = json.loads(capsys.readouterr().out)["kept"]
    assert kept["tokens"] == 100 and kept["from_disk_s"] > 0 and kept["from_memory_s"] > 0
    assert run("bench", TINY, *options) == 0
    assert "100 tokens kept" in capsys.readouterr().out


def test_bench_asks_for_no_more_context_than_the_model_has(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = use_table(monkeypatch, Extras)
    assert run("bench", TINY, "--prefill", "16", "--context", "16,9999", "--batch", "1") == 0
    out, err = capsys.readouterr()
    assert tables[0].limits.context_length == common.trained_context(
        cli.build_parser().parse_args(["bench", str(TINY)])
    )
    assert "Skipped" in err
    assert "decode tokens/s" in out


def test_bench_compares_with_an_earlier_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    use_table(monkeypatch, Extras)
    options = ("--prefill", "16", "--context", "16", "--batch", "1")
    assert run("bench", TINY, "--json", *options) == 0
    earlier = json.loads(capsys.readouterr().out)
    earlier["peak_gpu_bytes"] *= 2
    file = tmp_path / "earlier.json"
    file.write_text(json.dumps(earlier))
    assert run("bench", TINY, *options, "--compare", file) == 0
    assert "peak_gpu_bytes" in (text := capsys.readouterr().out)
    assert "0.50 x" in text
    assert run("bench", TINY, *options, "--compare", file, "--json") == 0
    out, err = capsys.readouterr()
    assert json.loads(out)
    assert "0.50 x" in err


@pytest.mark.parametrize("content", ["", "[]", "{}"])
def test_bench_refuses_to_compare_with_something_else(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "earlier.json"
    file.write_text(content)
    assert run("bench", TINY, "--compare", file) == 1
    assert "earlier.json" in capsys.readouterr().err


GOOD = {
    "adapters": [
        {"name": "Big GPU", "backend": "Vulkan", "type": "DiscreteGPU", "driver": "1.2", "usable": True, "reason": ""},
        {"name": "Old GPU", "backend": "OpenGL", "type": "", "driver": "", "usable": False, "reason": "OpenGL only"},
    ],
    "chosen": "Big GPU",
    "features": ["shader-f16", "subgroup"],
    "limits": {"max-buffer-size": 2**30},
    "subgroup_size": 32,
    "kernel_set": "fused",
    "kernel_reason": "subgroups of 32",
    "memory": {"budget_bytes": 2**33, "source": "VK_EXT_memory_budget"},
    "problems": [],
    "versions": {"inglenook": "0.1.0"},
}
BAD = {"adapters": [GOOD["adapters"][1]], "chosen": None, "memory": None, "problems": ["Install the driver."]}  # type: ignore[index]


def test_doctor_tells_what_there_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(doctor, "examine", lambda adapter: GOOD)
    assert run("doctor") == 0
    out, err = capsys.readouterr()
    assert err == ""
    for words in ("Big GPU (Vulkan, DiscreteGPU, 1.2) usable", "OpenGL only", "8192 MiB", "fused (subgroups of 32)"):
        assert words in out
    assert "No problems" in out
    assert run("doctor", "--json") == 0
    assert json.loads(capsys.readouterr().out) == GOOD


def test_doctor_tells_what_a_model_would_take(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = {"path": "m.gguf", "words": "about 1.0 GB", "max_sequences": 3, "context_length": 4096}
    monkeypatch.setattr(doctor, "examine", lambda adapter: GOOD)
    monkeypatch.setattr(doctor, "estimate", lambda args: told if args.max_sequences == 3 else {})
    assert run("doctor", "m.gguf", "--max-sequences", "3") == 0
    out = capsys.readouterr().out
    assert "Model: m.gguf\n  takes about 1.0 GB\n  3 answers at once, a context of 4,096 tokens\n" in out
    assert run("doctor", "m.gguf", "--max-sequences", "3", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {**GOOD, "model": told}


def test_doctor_says_why_a_model_would_not_load(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "examine", lambda adapter: GOOD)
    assert run("doctor", "absent.gguf") == 1
    out, err = capsys.readouterr()
    assert "absent.gguf" in err and err.count("\n") == 1
    assert "absent.gguf" in out and "No problems" not in out


@pytest.mark.parametrize("found", [BAD, {"adapters": []}, {}])
def test_doctor_fails_without_a_usable_adapter(
    found: dict[str, object], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "examine", lambda adapter: found)
    for options in ([], ["--json"]):
        assert run("doctor", *options) == 1
        out, err = capsys.readouterr()
        assert out
        assert err.startswith("inglenook: ") and err.count("\n") == 1
        assert "driver" in err

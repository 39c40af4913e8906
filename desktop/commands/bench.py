"""`inglenook bench`: measure a model on this machine, as a table or JSON, and set it against an earlier run.

Formats only: engine/bench.py measures. Runs on the main thread, which drives the model's table itself.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, cast

from desktop.commands import common, options, terminal

if TYPE_CHECKING:
    from engine.bench import BenchPlan
    from engine.bench_steps import MeasuredTable
    from engine.loading import LoadedModel

Numbers = dict[str, float]


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command's arguments. --context here is a list: where decode is measured."""
    parser = options.add_command(commands, "bench", "measure speed, start-up and memory", run)
    options.add_model(parser, context_option=False)
    options.add_serving(parser)
    for flag, what in (
        ("--prefill", "prompt lengths to compute (default: 128,512)"),
        ("--context", "contexts to decode at (default: 128,1024,4096)"),
        ("--batch", "sequences to decode together, at the first context (default: 8)"),
    ):
        parser.add_argument(flag, type=options.positive_ints, metavar="N,…", help=what)
    parser.add_argument(
        "--kept",
        type=options.positive_int,
        metavar="N",
        help="also measure a prompt of N tokens that is kept, in a folder that is removed again",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="an earlier --json, to print ratios against")


def run(args: argparse.Namespace) -> int:
    """Measure and print. Raises EngineError or ModelError."""
    earlier = None if args.compare is None else read_report(args.compare)
    report = _measure(args)
    if args.json:
        terminal.write_json(report)
    else:
        terminal.write(as_text(report))
    if earlier is not None:
        comparison = as_comparison(report, earlier)
        if args.json:  # stdout carries the object and nothing else
            for line in comparison.splitlines():
                terminal.notice(line)
        else:
            terminal.write("\n" + comparison)
    return 0


def read_report(path: Path) -> dict[str, object]:
    """An earlier `bench --json`. Raises CommandError where the file is something else."""
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise options.CommandError(f"{path} is not JSON: {error}. Give a file that `bench --json` wrote.") from error
    if not isinstance(value, dict) or not {"prefill", "decode"} <= value.keys():
        raise options.CommandError(f"{path} is not a report of `bench --json`.")
    return value


def as_text(report: dict[str, object]) -> str:
    """The report for a person."""
    lines = [
        f"{report['model']} on {report['adapter']} ({report['backend']})",
        f"weights {_mib(report['weight_bytes'])}, peak GPU memory {_mib(report['peak_gpu_bytes'])}, "
        f"ready after {report['startup_s']:.2f} s, first token after {report['ttft_ms']:.0f} ms",
    ]
    bandwidth = cast(Numbers, report["bandwidth"])
    lines.append(f"bandwidth {bandwidth['achieved_gb_s']:.1f} of {bandwidth['ceiling_gb_s']:.1f} GB/s")
    prefill = [(str(row["tokens"]), f"{row['tokens_per_s']:.1f}") for row in _rows(report, "prefill")]
    decode = [
        (
            str(row["batch"]),
            str(row["context"]),
            f"{row['tokens_per_s']:.1f}",
            f"{row['dispatches_per_token']:g}",
            f"{row['host_ms_per_token']:.3f}",
            f"{row['host_ms_per_token_contended']:.3f}",
        )
        for row in _rows(report, "decode")
    ]
    header = ("batch", "context", "decode tokens/s", "dispatches/token", "host ms/token", "contended")
    tables = [terminal.table(("prompt", "prefill tokens/s"), prefill), terminal.table(header, decode)]
    if "kept" in report:
        tables.append(_kept_as_text(cast(Numbers, report["kept"])))
    return "\n".join(["\n".join(lines) + "\n", *tables])


def _kept_as_text(kept: Numbers) -> str:
    rows = [
        ("computed", f"{kept['computed_s']:.3f}", "1"),
        ("from the disk", f"{kept['from_disk_s']:.3f}", f"{kept['from_disk_s'] / kept['computed_s']:.4f}"),
        ("from memory", f"{kept['from_memory_s']:.3f}", f"{kept['from_memory_s'] / kept['computed_s']:.4f}"),
    ]
    between = [
        ("quiet", f"{kept['quiet_median_ms']:.1f}", f"{kept['quiet_p99_ms']:.1f}"),
        (f"{kept['blocks_written']} blocks", f"{kept['writing_median_ms']:.1f}", f"{kept['writing_p99_ms']:.1f}"),
    ]
    return "\n".join(
        [
            terminal.table((f"{kept['tokens']} tokens kept", "first token after s", "ratio"), rows),
            terminal.table(("writing", "ms between tokens", "99th percentile"), between),
        ]
    )


def as_comparison(report: dict[str, object], earlier: dict[str, object]) -> str:
    """How often the earlier number the new one is, a line for each that both reports have."""
    before = _flat(earlier)
    lines = [
        (name, f"{before[name]:g}", f"{value:g}", f"{value / before[name]:.2f} x")
        for name, value in _flat(report).items()
        if before.get(name)
    ]
    return terminal.table(("number", "earlier", "now", "ratio"), lines)


def _measure(args: argparse.Namespace) -> dict[str, object]:
    started = time.perf_counter()
    from engine.bench import measure

    plan = _plan(args)
    with common.loaded_model(args, context=_context(args, plan)) as model:
        startup_s = time.perf_counter() - started
        table = cast("MeasuredTable", model.table)
        numbers = asdict(measure(table, model.weight_bytes, plan, terminal.notice))
        if args.kept is not None:
            numbers["kept"] = _measure_kept(model, args.kept)
        return {
            "adapter": model.adapter,
            "backend": table.backend,
            "model": model.name,
            "weight_bytes": model.weight_bytes,
            "startup_s": startup_s,
            **numbers,
        }


def _measure_kept(model: LoadedModel, num_tokens: int) -> dict[str, object]:
    from engine.bench_kept import measure_kept

    with tempfile.TemporaryDirectory(prefix="inglenook-bench-") as folder:
        kept = measure_kept(model.table, model.tokenizer, num_tokens, Path(folder), software=model.software_adapter)
        return asdict(kept)


def _plan(args: argparse.Namespace) -> BenchPlan:
    from engine.bench import BenchPlan

    plan = BenchPlan()
    return BenchPlan(
        prefill=args.prefill or plan.prefill, contexts=args.context or plan.contexts, batches=args.batch or plan.batches
    )


def _context(args: argparse.Namespace, plan: BenchPlan) -> int:
    """Room for all of the plan, but no more than the model was made for: measurements beyond that are skipped."""
    from engine.bench_kept import context_needed

    needed = max(plan.context_needed(), 0 if args.kept is None else context_needed(args.kept))
    return min(needed, common.trained_context(args))


def _rows(report: dict[str, object], key: str) -> list[Numbers]:
    return cast(list[Numbers], report[key])


def _mib(size: object) -> str:
    return f"{cast(int, size) / terminal.MIB:.0f} MiB"


def _flat(report: dict[str, object]) -> Numbers:
    """Numbers that can be compared, by a name that says what was measured; what is no number is left out."""
    flat = {f"prefill {row.get('tokens')} tokens/s": row.get("tokens_per_s") for row in _dicts(report, "prefill")}
    for row in _dicts(report, "decode"):
        place = f"batch {row.get('batch')} context {row.get('context')}"
        flat[f"decode {place} tokens/s"] = row.get("tokens_per_s")
        flat[f"host ms/token {place}"] = row.get("host_ms_per_token")
        flat[f"host ms/token contended {place}"] = row.get("host_ms_per_token_contended")
    for name in ("ttft_ms", "startup_s", "peak_gpu_bytes"):
        flat[name] = report.get(name)
    bandwidth = report.get("bandwidth")
    if isinstance(bandwidth, dict):
        flat["achieved GB/s"] = bandwidth.get("achieved_gb_s")
    return {name: float(value) for name, value in flat.items() if isinstance(value, (int, float))}


def _dicts(report: dict[str, object], key: str) -> list[dict[str, object]]:
    value = report.get(key)
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []

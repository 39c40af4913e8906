"""`inglenook doctor`: what the machine offers, what was chosen, and what is wrong; with MODEL what that would take.

Formats only: engine/doctor.py examines, engine/load_plan.py estimates. Nothing is loaded. Runs on the main thread.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping

from desktop import words
from desktop.commands import common, options, terminal
from engine.errors import EngineError
from models.errors import ModelError

Findings = Mapping[str, object]

_NO_ADAPTER = (
    "No usable GPU adapter. Install the graphics driver of this machine (on Linux also Mesa's Vulkan drivers)."
)


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command's arguments."""
    parser = options.add_command(commands, "doctor", "what this machine offers, and what is wrong", run)
    parser.add_argument("model", nargs="?", metavar="MODEL", help="say what loading this one would take")
    options.add_device(parser)
    options.add_serving(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def examine(adapter: str | None) -> Findings:
    """What engine/doctor.py finds; tests put findings of their own here."""
    from engine.doctor import examine as examine_machine

    return examine_machine(adapter)


def estimate(args: argparse.Namespace) -> Findings:
    """What loading the model of `args` would take, in bytes. Raises what loading it would."""
    from engine.load_plan import estimate_load

    plan = estimate_load(common.load_options(args))
    limits, taken = plan.limits, plan.estimate
    return {
        "path": str(plan.path),
        "context_length": limits.context_length,
        "max_sequences": limits.max_slots,
        "total_tokens": taken.tokens,
        "estimate": {
            "total_bytes": taken.total,
            "weight_bytes": taken.weights,
            "context_bytes": taken.context,
            "working_bytes": taken.working_space,
        },
        "budget": {"bytes": plan.device.budget_bytes, "source": plan.device.source},
        "words": words.memory(taken),
    }


def run(args: argparse.Namespace) -> int:
    """Print the findings; 1 and a line on stderr where no adapter is usable, or the model would not load."""
    found = examine(args.adapter)
    refusal = None
    if args.model is not None:
        try:
            found = {**found, "model": estimate(args)}
        except (EngineError, ModelError) as error:
            refusal = str(error)
            others = [problem for problem in _strings(found.get("problems")) if problem != refusal]
            found = {**found, "model": None, "problems": [refusal, *others]}
    if args.json:
        terminal.write_json(found)
    else:
        terminal.write(as_text(found))
    if not any(adapter.get("usable") for adapter in _mappings(found.get("adapters"))):
        terminal.notice(_first_problem(found) or _NO_ADAPTER)
        return 1
    if refusal is not None:
        terminal.notice(refusal)
        return 1
    return 0


def as_text(found: Findings) -> str:
    """The findings for a person: adapters, the choice and its reasons, problems last where they are seen."""
    lines = ["Adapters", *map(_adapter_line, _mappings(found.get("adapters")))]
    if len(lines) == 1:
        lines.append("  none")
    for title, key in (("Chosen", "chosen"), ("Subgroup size", "subgroup_size")):
        if found.get(key) is not None:
            lines.append(f"{title}: {found[key]}")
    if found.get("kernel_set"):
        lines.append(f"Kernels: {found['kernel_set']} ({found.get('kernel_reason') or 'no reason given'})")
    lines += _memory_lines(found.get("memory"))
    lines += _model_lines(found.get("model"))
    lines += _section("Features", found.get("features"))
    lines += _section("Limits", found.get("limits"))
    lines += _section("Versions", found.get("versions"))
    problems = _strings(found.get("problems"))
    lines += ["Problems", *(f"  {problem}" for problem in problems)] if problems else ["No problems found."]
    return "\n".join(lines) + "\n"


def _adapter_line(adapter: Findings) -> str:
    verdict = "usable" if adapter.get("usable") else "not usable"
    reason = f": {adapter['reason']}" if adapter.get("reason") else ""
    details = ", ".join(str(adapter[key]) for key in ("backend", "type", "driver") if adapter.get(key))
    return f"  {adapter.get('name')} ({details}) {verdict}{reason}"


def _memory_lines(memory: object) -> list[str]:
    if not isinstance(memory, Mapping) or not isinstance(memory.get("budget_bytes"), int):
        return []
    return [f"Memory: {memory['budget_bytes'] / terminal.MIB:.0f} MiB, as told by {memory.get('source')}"]


def _model_lines(model: object) -> list[str]:
    if not isinstance(model, Mapping):
        return []
    return [
        f"Model: {model['path']}",
        f"  takes {model['words']}",
        f"  {model['max_sequences']} answers at once, a context of {model['context_length']:,} tokens",
    ]


def _section(title: str, content: object) -> list[str]:
    if isinstance(content, Mapping):
        return [title, *(f"  {key}: {value}" for key, value in content.items())] if content else []
    names = _strings(content)
    return [title, *(f"  {name}" for name in sorted(names))] if names else []


def _first_problem(found: Findings) -> str | None:
    return next(iter(_strings(found.get("problems"))), None)


def _mappings(value: object) -> list[Findings]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, Iterable) else []


def _strings(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, (list, tuple, set, frozenset)) else []

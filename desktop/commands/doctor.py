"""`inglenook doctor`: what the machine offers, what was chosen, and what is wrong.

Formats only: engine/doctor.py examines. Runs on the main thread.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping

from desktop.commands import options, terminal

Findings = Mapping[str, object]

_NO_ADAPTER = (
    "No usable GPU adapter. Install the graphics driver of this machine (on Linux also Mesa's Vulkan drivers)."
)


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command's arguments."""
    parser = options.add_command(commands, "doctor", "what this machine offers, and what is wrong", run)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def examine() -> Findings:
    """What engine/doctor.py finds; tests put findings of their own here."""
    from engine.doctor import examine as examine_machine

    return examine_machine()


def run(args: argparse.Namespace) -> int:
    """Print the findings; 1 and a line on stderr where no adapter is usable."""
    found = examine()
    if args.json:
        terminal.write_json(found)
    else:
        terminal.write(as_text(found))
    if not any(adapter.get("usable") for adapter in _mappings(found.get("adapters"))):
        terminal.notice(_first_problem(found) or _NO_ADAPTER)
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

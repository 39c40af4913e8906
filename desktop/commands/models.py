"""`inglenook models`: what is installed, and where. Loads nothing. Runs on the main thread."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from desktop.commands import options, terminal

if TYPE_CHECKING:
    from models.library import InstalledModel


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command's arguments."""
    parser = options.add_command(commands, "models", "what is installed, and where", run)
    parser.add_argument("--json", action="store_true", help="print a JSON list instead of a table")


def run(args: argparse.Namespace) -> int:
    """Print the list."""
    from models.library import installed, models_dir

    found = installed()
    if args.json:
        terminal.write_json([as_json(model) for model in found])
    elif found:
        rows = [(m.name, m.quantization or "", _size(m.bytes), m.source, str(m.path)) for m in found]
        terminal.write(terminal.table(("name", "type", "size", "source", "path"), rows))
    else:
        terminal.notice(f"No model is installed. Put a .gguf file into {models_dir()}.")
    return 0


def _size(num_bytes: int) -> str:
    return f"{num_bytes / terminal.MIB:.0f} MiB"


def as_json(model: InstalledModel) -> dict[str, object]:
    """One entry of `models --json`; its keys are a promise to other programs."""
    return {
        "name": model.name,
        "path": str(model.path),
        "format": model.format,
        "quantization": model.quantization,
        "bytes": model.bytes,
        "source": model.source,
    }

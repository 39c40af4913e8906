"""`inglenook logits`: the logits after every token of a sequence, in a file, to compare with another implementation.

Knows no kernels; engine/scoring.py asks the model. Runs on the main thread.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, cast

from desktop.commands import common, options, terminal

if TYPE_CHECKING:
    from engine.scoring import ScoringTable


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command's arguments."""
    parser = options.add_command(commands, "logits", "write the logits after every token to a file", run)
    options.add_model(parser)
    parser.add_argument("--token-ids", type=options.token_ids, required=True, metavar="1,2,3", help="the tokens")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE.npy", help="float32 [tokens, vocab] in numpy's format"
    )


def run(args: argparse.Namespace) -> int:
    """Score the tokens and write FILE. Raises EngineError or ModelError, OSError where FILE cannot be written."""
    folder = args.out.absolute().parent
    if not folder.is_dir():  # said before the load, not after it
        raise options.CommandError(f"There is no folder {folder} to write {args.out.name} to. Create it first.")
    with common.loaded_model(args) as model:
        import numpy as np

        from engine.scoring import score

        logits = score(cast("ScoringTable", model.table), args.token_ids)
    with args.out.open("wb") as file:  # np.save would add .npy to a name without it
        np.save(file, logits)
    terminal.notice(f"Wrote float32 {list(logits.shape)} to {args.out}.")
    return 0

"""How much of a conversation a command keeps: its options, and what they mean for loads and requests.

Knows nothing of how it is kept. Runs on the main thread.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.tiers.settings import TierSettings


def add_cache(parser: argparse.ArgumentParser) -> None:
    """Declare the options, of which at most one can be given."""
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument(
        "--no-prefix-cache",
        action="store_true",
        help="compute everything: neither use nor leave anything computed before",
    )
    choice.add_argument(
        "--no-disk-cache", action="store_true", help="leave nothing on disk: what was computed is gone at the end"
    )


def tiers(args: argparse.Namespace) -> TierSettings | None:
    """Where conversations are kept below the device; None for commands without the options."""
    if getattr(args, "no_prefix_cache", True):
        return None
    from engine.tiers.settings import TierSettings
    from models.library import prefix_cache_dir

    return TierSettings(root=None if args.no_disk_cache else prefix_cache_dir())

"""`inglenook cache`: what is kept of conversations, and `inglenook cache clear`: none of it any more.

Loads no model, opens no GPU, and may run while other processes use the folder. With --json there is one object on
stdout. Its keys are a promise to other programs:

    folder                 where everything is
    bytes, blocks          what is stored now, of all models
    models                 a list of {name, fingerprint, bytes, blocks}; name is null where nobody noted it
    budget_bytes           the most that may be stored
    free_bytes             what the disk has left, or null
    written_today_bytes    what was written since midnight UTC, and
    daily_budget_bytes     the most that may be
    hits, misses           how often something was found in the cache, and how often not
    restored_tokens        tokens that were read instead of computed
    trouble                a sentence on what keeps the cache from working, or null

`clear --json` has folder, bytes and blocks (what is left, 0 as a rule), freed_bytes, removed_blocks and left (sentences
about what could not be removed). Runs on the main thread.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from desktop.commands import options, terminal

if TYPE_CHECKING:
    from engine.tiers.disk_limits import DiskLimits

Report = dict[str, object]
_UNITS = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"))
_UNKNOWN = "unknown model"


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command's arguments."""
    parser = options.add_command(commands, "cache", "what is kept of conversations, and how to forget it", run)
    parser.add_argument("action", nargs="?", choices=("clear",), help="forget everything that is kept")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def run(args: argparse.Namespace) -> int:
    """Show the cache, or clear it. What can't be removed is said and is no failure."""
    from models.library import prefix_cache_dir

    folder = prefix_cache_dir()
    if args.action == "clear":
        return _clear(folder, as_json=args.json)
    found = report(folder)
    if args.json:
        terminal.write_json(found)
    else:
        terminal.write(as_text(found))
    return 0


def report(folder: Path) -> Report:
    """What `cache --json` prints."""
    from engine.tiers.disk_limits import default_limits
    from engine.tiers.notes import Notes
    from engine.tiers.usage import free_bytes, usage

    notes = Notes(folder)
    try:
        counters, names, written = notes.counters(), notes.models(), notes.written_today()
    finally:
        notes.close()
    stored, limits, free = usage(folder), default_limits(folder), free_bytes(folder)
    models = [
        {
            "name": names.get(model.fingerprint),
            "fingerprint": model.fingerprint.hex(),
            "bytes": model.bytes,
            "blocks": model.blocks,
        }
        for model in stored.models
    ]
    return {
        "folder": str(folder),
        "bytes": stored.bytes,
        "blocks": stored.blocks,
        "hits": counters.get("hits", 0),
        "misses": counters.get("misses", 0),
        "restored_tokens": counters.get("restored_tokens", 0),
        "budget_bytes": limits.budget_bytes,
        "free_bytes": free,
        "written_today_bytes": written,
        "daily_budget_bytes": limits.daily_write_bytes,
        "trouble": stored.trouble or _notes_trouble(notes.trouble) or _limit_reached(limits, free, written),
        "models": models,
    }


def as_text(found: Report) -> str:
    """The report for a person."""
    lines = [f"Conversations are kept in {found['folder']}."]
    if found["blocks"]:
        lines += [
            f"{size(found['bytes'])} of at most {size(found['budget_bytes'])} are in use, "
            f"in {_count(found['blocks'], 'block')}.",
            f"{_written(found)}; the disk has {size(found['free_bytes'])} left.",
            _uses(found),
        ]
    else:
        lines.append(f"Nothing is kept at present; it may grow to {size(found['budget_bytes'])}.")
    if found["trouble"]:
        lines.append(f"Trouble: {found['trouble']}")
    text = "\n".join(lines) + "\n"
    models = found["models"]
    if isinstance(models, list) and models:
        rows = [
            (m["name"] or f"{_UNKNOWN} {m['fingerprint'][:8]}", size(m["bytes"]), f"{m['blocks']:,}") for m in models
        ]
        text += "\n" + terminal.table(("model", "size", "blocks"), rows)
    return text


def size(num_bytes: object) -> str:
    """A size as disks are sold: 1 MB is a million bytes, with two or three digits that count."""
    if not isinstance(num_bytes, int):
        return "an unknown amount"
    for unit, name in _UNITS:
        if num_bytes >= unit:
            value = num_bytes / unit
            return f"{value:.1f} {name}" if value < 99.95 else f"{value:,.0f} {name}"
    return _count(num_bytes, "byte")


def _clear(folder: Path, *, as_json: bool) -> int:
    from engine.tiers.notes import Notes
    from engine.tiers.usage import clear, usage

    cleared = clear(folder)
    notes = Notes(folder)
    try:
        notes.forget_all()
    finally:
        notes.close()
    left = [*cleared.left, *filter(None, [_notes_trouble(notes.trouble)])]
    if as_json:
        stored = usage(folder)
        terminal.write_json(
            {
                "folder": str(folder),
                "bytes": stored.bytes,
                "blocks": stored.blocks,
                "freed_bytes": cleared.freed_bytes,
                "removed_blocks": cleared.removed_blocks,
                "left": left,
            }
        )
    elif cleared.removed_blocks or cleared.freed_bytes:
        freed = f"{size(cleared.freed_bytes)} in {_count(cleared.removed_blocks, 'block')}"
        terminal.write(f"Forgotten: {freed} of conversations. The chats themselves stay.\n")
    elif not left:
        terminal.write("There was nothing to forget.\n")
    for sentence in left:
        terminal.notice(sentence)
    return 0


def _notes_trouble(reason: str | None) -> str | None:
    return None if reason is None else f"The notes in it can't be used: {reason}."


def _limit_reached(limits: DiskLimits, free: int | None, written: int) -> str | None:
    if free is not None and free <= limits.reserve_bytes:
        return f"The disk is nearly full, so nothing more is kept until it has {size(limits.reserve_bytes)} left."
    if written >= limits.daily_write_bytes:
        return "As much as is allowed in a day has been written; tomorrow it goes on."
    return None


def _written(found: Report) -> str:
    return f"Today {size(found['written_today_bytes'])} of at most {size(found['daily_budget_bytes'])} were written"


def _uses(found: Report) -> str:
    hits = found["hits"]
    if not hits:
        return "Nothing was taken from it so far."
    return f"It helped {_count(hits, 'time')} and saved computing {_count(found['restored_tokens'], 'token')}."


def _count(number: object, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"

"""Forgetting on disk, of one chat or of everything: first the notes, then the kv blocks that they name.

Knows neither memory nor models. A worker thread, or whoever has time for the disk.
"""

from __future__ import annotations

from engine.tiers.chain import Key
from engine.tiers.folder import BlockFolder
from engine.tiers.notes import Notes


def forget_kept(notes: Notes, folder: BlockFolder | None, chat: str | None) -> dict[bytes, list[Key]]:
    """Let go of what only this chat has, or with None of everything; returns a chat's keys by model."""
    if chat is None:
        notes.forget_all()
        if folder is not None:
            folder.forget_all()
        return {}
    gone = notes.forget_chat(chat)
    if folder is not None:
        for fingerprint, keys in gone.items():
            folder.forget(fingerprint, set(keys))
    return gone

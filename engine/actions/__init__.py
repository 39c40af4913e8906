"""Engine actions, one per file, and the order in which they are tried.

Draft, verify and jump-forward actions will be further files and further lists here. Nothing of threads or text.
"""

from __future__ import annotations

from engine.actions.base import EngineAction, StepFailed
from engine.actions.batch_decode import BatchDecode
from engine.actions.new_request_prefill import NewRequestPrefill
from engine.actions.restore_pages import RestorePages
from engine.actions.save_pages import SavePages

__all__ = ["EngineAction", "StepFailed", "default_actions"]


def default_actions() -> tuple[EngineAction, ...]:
    """What is quick and makes others quicker first, then prompts, then decoding.

    RestorePages and NewRequestPrefill step aside where they would stall a running stream, SavePages for anybody.
    """
    return (RestorePages(), SavePages(), NewRequestPrefill(), BatchDecode())

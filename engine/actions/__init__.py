"""Engine actions, one per file, and the order in which they are tried.

Draft, verify and jump-forward actions will be further files and further lists here. Nothing of threads or text.
"""

from __future__ import annotations

from engine.actions.base import EngineAction, StepFailed
from engine.actions.batch_decode import BatchDecode
from engine.actions.new_request_prefill import NewRequestPrefill

__all__ = ["EngineAction", "StepFailed", "default_actions"]


def default_actions() -> tuple[EngineAction, ...]:
    """Prompts first, then decoding; NewRequestPrefill steps aside where that would stall a running stream."""
    return (NewRequestPrefill(), BatchDecode())

"""BatchDecode: draws one token for each running sequence, ahead of the tokens in flight where nothing forbids it.

A sequence takes a page when it reaches one. Where none is to be had, the youngest gives way (engine/state.py).
"""

from __future__ import annotations

from engine.actions.commons import StepPlan, next_decodes, submit_step
from engine.state import EngineState


class BatchDecode:
    """See the module's docstring."""

    def step(self, state: EngineState) -> bool:
        """One row per sequence that may draw another token; False if none may."""
        if not state.running:
            return False
        batch = next_decodes(state, min(state.limits.max_rows, state.limits.max_samples))
        state.decode_owed = False
        if not batch:
            return False
        plan = StepPlan()
        for sequence in batch:
            plan.decode(sequence)
        submit_step(state, state.table.decode, plan, batch)
        return True

"""RestorePages: loads the next pages that arrived from below the device, and puts them into the prefix cache.

Once submitted they can be read by every later step, so they are in the tree at once. Running streams have every other
step. Where the pages come from is engine/restoring.py's business.
"""

from __future__ import annotations

from engine.actions.commons import submit_move
from engine.function_table import MAX_MOVED_PAGES
from engine.state import EngineState


class RestorePages:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._had_last_step = False

    def step(self, state: EngineState) -> bool:
        """One kv block's pages; False where none has arrived or decoding has the turn."""
        restorer = state.restorer
        if not restorer.num_open:
            return False
        if any(sequence.lacks_page for sequence in [*state.running, *state.prefilling]):
            return False  # what is free, or comes free, is theirs
        if self._had_last_step and any(sequence.can_run_ahead for sequence in state.running):
            self._had_last_step = False
            return False
        placed = restorer.next_pages()
        if placed is None:
            return False
        assert len(placed.pages) <= MAX_MOVED_PAGES, "a kv block has more pages than a step can load"
        try:
            submit_move(state, lambda: state.table.load_pages(placed.pages, placed.data))
            restorer.submitted(placed, state.table.last_submitted)
        finally:
            state.pages.release(placed.pages, state.table.last_submitted)
        self._had_last_step = True
        return True

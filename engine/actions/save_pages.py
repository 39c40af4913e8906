"""SavePages: reads the next kv block that is worth keeping from the device, while nobody needs the device much.

What comes of it, and how much of the device's time it may take, is engine/saving.py's business.
"""

from __future__ import annotations

from engine.actions.commons import submit_move
from engine.state import EngineState


class SavePages:
    """See the module's docstring."""

    def step(self, state: EngineState) -> bool:
        """One kv block, or False where there is none or the time is others'."""
        saver = state.saver
        if not saver.may_save(busy=state.is_busy):
            return False
        saving = saver.next()
        try:
            submit_move(state, lambda: state.table.save_pages(saving.pages), saving)
        except BaseException:
            saver.lost(saving)
            raise
        finally:
            state.pages.release(saving.pages, state.table.last_submitted)
        return True

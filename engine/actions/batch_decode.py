"""BatchDecode: draws one token for each running request, ahead of the tokens in flight where nothing forbids it.

Every request has all the pages that it can need, so a decode step never runs short. Once requests are admitted on less,
this is where one is preempted.
"""

from __future__ import annotations

from engine.actions.commons import draw_after, submit_step
from engine.function_table import Row, Sample
from engine.request_state import RequestState
from engine.state import EngineState


class BatchDecode:
    """See the module's docstring."""

    def step(self, state: EngineState) -> bool:
        """One row per request that may draw another token; False if none may."""
        batch = _next_batch(state)
        if not batch:
            return False
        rows: list[Row] = []
        samples: list[Sample] = []
        for index, sequence in enumerate(batch):
            position = len(sequence.request.prompt_ids) + sequence.num_drawn - 1
            rows.append(Row(sequence.next_input, position, sequence.slot))
            samples.append(draw_after(index, position, sequence))
        submit_step(state, state.table.decode, rows, samples, batch, batch)
        state.chunk_went_last = False
        return True


def _next_batch(state: EngineState) -> list[RequestState]:
    """All that may go on; where a step cannot hold them all, those that went longest ago."""
    batch = [sequence for sequence in state.running if sequence.can_run_ahead]
    most = min(state.limits.max_rows, state.limits.max_samples)
    if len(batch) > most:
        batch = batch[:most]
        state.running = [sequence for sequence in state.running if sequence not in batch] + batch
    return batch

"""NewRequestPrefill: admits waiting requests and computes the next chunk of their prompts.

One step holds at most max_rows prompt tokens, of one request or of several. The chunk that completes a prompt also
draws the first token. While others are decoding, chunks and decode steps alternate, so that a running stream waits for
one chunk at most. The prefix cache will let a prompt start at what is already computed.
"""

from __future__ import annotations

from engine.actions.commons import admit_waiting, draw_after, submit_step
from engine.function_table import Row, Sample
from engine.request_state import RequestState
from engine.state import EngineState


class NewRequestPrefill:
    """See the module's docstring."""

    def step(self, state: EngineState) -> bool:
        """One chunk, or False where there is no prompt to compute or it is the running requests' turn."""
        if not state.waiting and not state.prefilling:
            return False
        if state.chunk_went_last and any(sequence.can_run_ahead for sequence in state.running):
            return False
        admit_waiting(state)
        chunks = _next_chunks(state)
        if not chunks:
            return False
        rows: list[Row] = []
        samples: list[Sample] = []
        drawing: list[RequestState] = []
        for sequence, end in chunks:
            prompt, slot = sequence.request.prompt_ids, sequence.slot
            rows.extend(Row(prompt[position], position, slot) for position in range(sequence.num_prefilled, end))
            if end == len(prompt):
                samples.append(draw_after(len(rows) - 1, end - 1, sequence))
                drawing.append(sequence)
        now = state.clock()
        submit_step(state, state.table.prefill, rows, samples, [sequence for sequence, _ in chunks], drawing)
        for sequence, end in chunks:
            sequence.num_prefilled = end
            if sequence.prefill_started is None:
                sequence.prefill_started = now
        for sequence in drawing:
            state.start_running(sequence)
        state.chunk_went_last = True
        return True


def _next_chunks(state: EngineState) -> list[tuple[RequestState, int]]:
    """Who takes part, in order of arrival, and up to which prompt position each gets."""
    num_rows, num_samples = state.limits.max_rows, state.limits.max_samples
    chunks: list[tuple[RequestState, int]] = []
    for sequence in state.prefilling:
        if not num_rows or not num_samples:
            break
        end = min(sequence.num_prompt, sequence.num_prefilled + num_rows)
        chunks.append((sequence, end))
        num_rows -= end - sequence.num_prefilled
        num_samples -= end == sequence.num_prompt
    return chunks

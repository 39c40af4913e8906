"""NewRequestPrefill: admits waiting sequences and computes the next chunk of what is known of them.

One step holds at most max_rows rows. Running sequences ride along with a row each, so that a running stream gets a
token per chunk; the chunk is as small as the measured pace demands, above all while there are any (engine/pacing.py).
The chunk that completes a prompt also draws the next token. What the prefix cache has is not computed again.
"""

from __future__ import annotations

from engine.actions.commons import StepPlan, admit_waiting, grow_short, next_decodes, submit_step, take_pages
from engine.function_table import Row, Sample
from engine.request_state import RequestState
from engine.state import EngineState


class NewRequestPrefill:
    """See the module's docstring."""

    def step(self, state: EngineState) -> bool:
        """One chunk with whoever rides along, or False where there is nothing to compute or others have the turn."""
        if not state.waiting and not state.prefilling:
            return False
        if state.decode_owed and any(sequence.can_run_ahead for sequence in state.running):
            return False
        grow_short(state, state.prefilling)  # only with a window: else a prompt has all its pages when it is admitted
        if state.waiting and state.slots.num_free:
            admit_waiting(state)
        if not state.prefilling:
            return False
        limits = state.limits
        riding = next_decodes(state, min(limits.max_rows, limits.max_samples) - 1)
        deepest = max((sequence.num_prefilled for sequence in state.prefilling), default=0)
        alone = not riding and not state.decode_owed
        paced = state.pacer.rows(deepest, alone=alone, taking_turns=state.decode_owed)
        num_rows = min(limits.max_rows - len(riding), paced)
        plan = StepPlan()
        for sequence in riding:
            plan.decode(sequence)
        _plan_chunks(state, plan, num_rows, limits.max_samples - len(riding))
        if not plan.chunks:
            return False
        now = state.clock()
        submit_step(state, state.table.prefill, plan, [sequence for sequence, _ in plan.chunks])
        for sequence, end in plan.chunks:
            _account(state, sequence, end, now)
        return True


def _account(state: EngineState, sequence: RequestState, end: int, now: float) -> None:
    sequence.num_prefilled = end
    state.memory.release_copy(sequence)
    state.memory.drop(sequence)
    opened = state.ledger[sequence.request.request_id]
    if opened.prefill_started is None:
        opened.prefill_started = now
    if end == sequence.num_target:
        state.start_running(sequence)


def _plan_chunks(state: EngineState, plan: StepPlan, num_rows: int, num_samples: int) -> None:
    """The first by arrival gets at least half of the rows; the other half is for those that have the least to do."""
    if not state.prefilling:
        return
    first, *others = state.prefilling
    others.sort(key=_num_left)
    for_others = min(num_rows // 2, sum(map(_num_left, others)))
    for sequence in (first, *others):
        most = num_rows - for_others if sequence is first else num_rows
        end = _end_of_chunk(state, sequence, most, num_samples)
        if end > sequence.num_prefilled:
            num_rows -= end - sequence.num_prefilled
            num_samples -= _num_samples(state, sequence, end)
            _add_chunk(state, plan, sequence, end)


def _num_left(sequence: RequestState) -> int:
    return sequence.num_target - sequence.num_prefilled


def _end_of_chunk(state: EngineState, sequence: RequestState, num_rows: int, num_samples: int) -> int:
    end = min(sequence.num_target, sequence.num_prefilled + num_rows)
    while end > sequence.num_prefilled and _num_samples(state, sequence, end) > num_samples:
        end -= 1
    return take_pages(state, sequence, end)


def _num_samples(state: EngineState, sequence: RequestState, end: int) -> int:
    """Samples of a chunk up to `end`: the draw that completes a prompt, and a prompt's logprobs."""
    drawn = 1 if end == sequence.num_target else 0
    if state.num_scored(sequence) is None:
        return drawn
    return drawn + max(0, min(end, sequence.num_prompt - 1) - max(sequence.num_prefilled, sequence.score_from))


def _add_chunk(state: EngineState, plan: StepPlan, sequence: RequestState, end: int) -> None:
    slot, start = sequence.slot, sequence.num_prefilled
    tokens = sequence.request.prompt_ids if end <= sequence.num_prompt else sequence.known_tokens
    scores = state.num_scored(sequence) is not None
    for position in range(start, end):
        plan.rows.append(Row(tokens[position], position, slot))
        if scores and sequence.score_from <= position < sequence.num_prompt - 1:
            top, forced = sequence.request.prompt_logprobs, tokens[position + 1]
            row = len(plan.rows) - 1
            plan.forced.append(Sample(row, slot, position + 1, sequence.sampling, top, forced))
            plan.scored.append(sequence)
    if end == sequence.num_target:
        plan.draw_after(end - 1, sequence)
    if sequence.copy is not None:
        plan.copies.append(sequence.copy)
    plan.chunks.append((sequence, end))
    plan.num_prompt_rows += end - start

"""A recount of EngineState from scratch, for tests and for hunting a fault: changes nothing and trusts no counter.

Knows every invariant of the core in one place and nothing of how it is kept. Runs on the background thread, or in a
test that has no threads.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from engine.function_table import PAGE_SIZE

if TYPE_CHECKING:
    from engine.request_state import RequestState
    from engine.state import EngineState


def check_integrity(state: EngineState) -> None:
    """Raise AssertionError, saying what is wrong, where the books don't balance."""
    admitted = [*state.prefilling, *state.running]
    places = Counter(id(sequence) for sequence in [*state.waiting, *admitted])
    assert places == Counter(id(sequence) for sequence in state.ledger.values()), "a request is lost or in two places"
    for request_id, sequence in state.ledger.items():
        assert sequence.request.request_id == request_id, "the ledger's key is not the request's id"
        assert sequence.finish_reason is None, f"{request_id} is finished and still open"
        _check_tokens(state, sequence)
    for sequence in state.waiting:
        assert sequence.slot < 0 and not sequence.pages and not sequence.num_prefilled, "a waiting request holds memory"
    assert all(sequence.num_prefilled < sequence.num_prompt for sequence in state.prefilling), "nothing left to prefill"
    assert all(sequence.num_prefilled == sequence.num_prompt for sequence in state.running), "prompt is not complete"
    state.slots.recount(sequence.slot for sequence in admitted)
    state.pages.recount(page for sequence in admitted for page in sequence.pages)
    _check_steps(state)


def _check_tokens(state: EngineState, sequence: RequestState) -> None:
    name = sequence.request.request_id
    in_flight = sum(step.drawing.count(sequence) for step in state.in_flight)
    assert sequence.num_drawn == len(sequence.committed) + in_flight, f"{name}: a drawn token is lost"
    assert sequence.num_returned == len(sequence.committed), f"{name}: a committed token was not told"
    assert sequence.num_drawn <= sequence.limit, f"{name}: drew beyond its limit"
    assert sequence.num_prompt + sequence.limit <= state.limits.context_length, f"{name}: beyond the context"
    if sequence.slot >= 0:
        num_positions = sequence.num_prompt + sequence.limit - 1
        assert len(sequence.pages) * PAGE_SIZE >= num_positions, f"{name}: too few pages"


def _check_steps(state: EngineState) -> None:
    numbers = [step.number for step in state.in_flight]
    last = state.table.last_submitted
    assert len(numbers) == state.table.in_flight <= state.limits.max_in_flight, "a step in flight is not accounted for"
    assert numbers == list(range(last - len(numbers) + 1, last + 1)), "steps are out of order"

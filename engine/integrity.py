"""A recount of EngineState from scratch, for tests and for hunting a fault: changes nothing and trusts no counter.

Knows every invariant of the core in one place and nothing of how it is kept. Runs on the background thread, or in a
test that has no threads.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from engine.function_table import PAGE_SIZE
from engine.window import NO_PAGE, held

if TYPE_CHECKING:
    from engine.open_request import OpenRequest
    from engine.request_state import RequestState
    from engine.state import EngineState


def check_integrity(state: EngineState) -> None:
    """Raise AssertionError, saying what is wrong, where the books don't balance."""
    admitted = [*state.prefilling, *state.running]
    places = Counter(id(sequence) for sequence in [*state.waiting, *admitted])
    answers = [answer for opened in state.ledger.values() for answer in opened.answers if answer.finish_reason is None]
    assert places == Counter(map(id, answers)), "an answer is lost or in two places"
    for request_id, opened in state.ledger.items():
        assert opened.request.request_id == request_id, "the ledger's key is not the request's id"
        _check_request(state, opened)
    for queue in (state.waiting, state.prefilling):
        assert queue == sorted(queue, key=lambda sequence: sequence.order), "a queue is out of order"
    for sequence in state.waiting:
        assert sequence.slot < 0 and not sequence.pages and sequence.copy is None, "a waiting sequence holds memory"
    assert all(sequence.num_prefilled < sequence.num_target for sequence in state.prefilling), "nothing left to prefill"
    assert all(sequence.num_prefilled == sequence.num_target for sequence in state.running), "prompt is not complete"
    _check_memory(state, admitted)
    _check_steps(state)


def _check_memory(state: EngineState, admitted: list[RequestState]) -> None:
    state.slots.recount(sequence.slot for sequence in admitted)
    in_use = [page for sequence in admitted for page in held(sequence.pages)]
    in_use += [sequence.copy[0] for sequence in admitted if sequence.copy is not None]
    state.pages.recount([*in_use, *state.cache.pages_held(), *state.saver.pages_held()])
    state.cache.check_integrity()
    assert state.cache.num_pinned <= state.limits.num_pages // 2, "too much is pinned"


def _check_request(state: EngineState, opened: OpenRequest) -> None:
    open_answers = [answer for answer in opened.answers if answer.finish_reason is None]
    assert len(opened.answers) == opened.request.n and len(open_answers) == opened.num_open > 0, (
        "answers are miscounted"
    )
    needed = state.memory.num_pages_needed(opened.answers[0])
    assert needed + state.cache.num_pinned <= state.limits.num_pages, "a request can never have its pages"
    for answer in open_answers:
        _check_tokens(state, answer)


def _check_tokens(state: EngineState, sequence: RequestState) -> None:
    name = f"{sequence.request.request_id} ({sequence.index})"
    in_flight = sum(step.drawing.count(sequence) for step in state.in_flight)
    num_committed = len(sequence.committed)
    assert sequence.num_drawn == num_committed + in_flight, f"{name}: a drawn token is lost"
    assert sequence.num_returned == num_committed, f"{name}: a committed token was not told"
    assert sequence.num_drawn <= sequence.limit, f"{name}: drew beyond its limit"
    assert sequence.num_prompt + sequence.limit <= state.limits.context_length, f"{name}: beyond the context"
    with_logprobs = sequence.request.logprobs is not None
    assert len(sequence.logprobs) == (num_committed if with_logprobs else 0), f"{name}: logprobs are misaligned"
    if sequence.slot >= 0:
        num_positions = max(sequence.num_target, sequence.num_prompt + sequence.num_drawn - 1)
        num_paged = sequence.next_row if state.memory.window.is_on else num_positions
        assert len(sequence.pages) * PAGE_SIZE >= num_paged, f"{name}: too few pages"
        assert sequence.num_retired <= num_positions, f"{name}: more retired than computed"
        _check_window(state, sequence, name)


def _check_window(state: EngineState, sequence: RequestState, name: str) -> None:
    window, pages = state.memory.window, sequence.pages
    for index, page in enumerate(pages):
        assert page != NO_PAGE or not window.needs(index, sequence.next_row), f"{name}: dropped a page that it needs"
    chunk = -(-state.limits.max_rows // PAGE_SIZE) + 1
    if window.is_on:
        assert len(held(pages)) <= window.most_pages(len(pages)) + chunk, f"{name}: holds what left its window"


def _check_steps(state: EngineState) -> None:
    numbers = [step.number for step in state.in_flight]
    last = state.table.last_submitted
    assert len(numbers) == state.table.in_flight <= state.limits.max_in_flight, "a step in flight is not accounted for"
    assert numbers == list(range(last - len(numbers) + 1, last + 1)), "steps are out of order"

"""The ledger's operations and their inverses."""

import pytest

from engine.open_request import OpenRequest
from engine.request import Request
from engine.request_state import RequestState


def ledger(limit: int = 8, prompt: int = 3, **options) -> RequestState:
    request = Request(request_id="a", prompt_ids=tuple(range(prompt)), **options)
    return RequestState(request, limit=limit, arrived=0.0)


class Letters:
    stop_ids = frozenset({9})

    def token_bytes(self, token: int) -> bytes:
        return b"abcdefgh"[token : token + 1]


def commit(state: RequestState, *tokens: int) -> None:
    state.num_drawn += len(tokens)
    for token in tokens:
        state.commit_token(token)


def test_rollback_undoes_commits():
    state = ledger()
    commit(state, 1)
    state.delta_request_return(Letters())
    before = list(state.committed)
    state.num_drawn += 2
    state.commit_token(2)
    state.commit_token(3)
    state.rollback_tokens(2)
    assert state.committed == before
    with pytest.raises(AssertionError, match="told"):
        state.rollback_tokens(1)


def test_a_token_is_committed_only_once_it_was_drawn():
    with pytest.raises(AssertionError, match="never drawn"):
        ledger().commit_token(1)


def test_drafts_go_all_at_once_and_give_each_slot_back_once():
    state = ledger()
    state.add_draft_token(5, slot=7, parent=-1)
    state.add_draft_token(6, slot=8, parent=0)
    state.add_draft_token(4, slot=7, parent=0)
    assert state.remove_all_draft_tokens() == [7, 8]
    assert state.remove_all_draft_tokens() == []
    with pytest.raises(AssertionError, match="follows a later one"):
        state.add_draft_token(5, slot=7, parent=0)


def test_what_was_committed_past_an_end_token_is_rolled_back():
    state = ledger()
    commit(state, 0, 1, 9, 2)
    assert state.delta_request_return(Letters()) == ((0, 1), b"ab", "stop")
    assert state.committed == [0, 1, 9]


def test_what_was_committed_past_a_stop_string_is_rolled_back():
    state = ledger(stop=("bc",))
    commit(state, 0, 1, 2, 3)
    assert state.delta_request_return(Letters()) == ((0, 1, 2), b"a", "stop")
    assert state.committed == [0, 1, 2]


def test_each_token_is_told_once():
    state = ledger()
    commit(state, 0, 1)
    assert state.delta_request_return(Letters()) == ((0, 1), b"ab", None)
    assert state.delta_request_return(Letters()) == ((), b"", None)
    commit(state, 2)
    assert state.delta_request_return(Letters()) == ((2,), b"c", None)


@pytest.mark.parametrize(("prompt", "limit", "pages"), [(1, 1, 1), (16, 1, 1), (16, 2, 2), (17, 16, 2), (17, 17, 3)])
def test_pages_hold_all_but_the_last_token(prompt, limit, pages):
    assert ledger(limit=limit, prompt=prompt).num_pages_needed == pages


def test_timings_are_zero_where_nothing_was_measured():
    timings = OpenRequest(Request(request_id="a", prompt_ids=(1,)), 0.0).timings
    assert (timings.ttft_s, timings.prefill_tokens_per_s, timings.decode_tokens_per_s) == (0.0, 0.0, 0.0)

"""The fake refuses what would corrupt a device, so that engine tests notice it."""

import pytest

from engine.fake_table import FakeTable, continuation, fold, pretend_logprobs, small_limits
from engine.function_table import FROM_DEVICE, Row, Sample
from engine.request import GREEDY, SamplingParams


def submit(table: FakeTable, rows: list[Row], *, decode: bool = False, draw: bool = True) -> int:
    table.begin_forward()
    table.embed(rows)
    (table.decode if decode else table.prefill)()
    if draw:
        last = rows[-1]
        table.logits([len(rows) - 1])
        table.sample([Sample(len(rows) - 1, last.slot, last.position + 1, GREEDY)])
    return table.end_forward()


def prompt_rows(tokens, slot=0):
    return [Row(token, position, slot) for position, token in enumerate(tokens)]


def test_tokens_are_those_of_continuation():
    def next_token(state: int, last: int) -> int:
        return (state + last) % 200

    table = FakeTable(next_token=next_token, delay=2)
    table.set_pages(0, 0, [3, 1])
    submit(table, prompt_rows([5, 6, 7]))
    submit(table, [Row(FROM_DEVICE, 3, 0)], decode=True)
    drawn = [table.retire(wait=True).tokens[0] for _ in range(2)]
    assert drawn == continuation([5, 6, 7], 2, next_token)


@pytest.mark.parametrize("delay", [1, 2, 3, 4])
def test_a_step_is_done_when_delay_steps_are_in_flight(delay):
    table = FakeTable(delay=delay)
    table.set_pages(0, 0, [0])
    for position in range(delay):
        assert table.retire(wait=False) is None
        submit(table, [Row(1, position, 0)], draw=False)
    assert table.retire(wait=False).step == 1
    assert table.in_flight == delay - 1 == table.last_submitted - table.last_retired


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "0 rows"),
        ([Row(1, 0, 8)], "slot 8"),
        ([Row(1, 256, 0)], "position 256"),
        ([Row(300, 0, 0)], "token 300"),
        ([Row(FROM_DEVICE, 0, 0)], "drawn no token"),
        ([Row(1, 1, 0)], "follows nothing"),
        ([Row(1, 0, 0), Row(1, 2, 0)], "follows nothing"),
        ([Row(1, 0, 1)], "no page"),
    ],
)
def test_bad_rows_are_refused(rows, message):
    table = FakeTable()
    table.set_pages(0, 0, [0])
    with pytest.raises(ValueError, match=message):
        submit(table, rows, draw=False)


def test_two_decode_rows_of_one_sequence_are_refused():
    table = FakeTable()
    table.set_pages(0, 0, [0])
    with pytest.raises(ValueError, match="two decode rows"):
        submit(table, prompt_rows([1, 2]), decode=True)


def test_calls_out_of_order_are_refused():
    table = FakeTable()
    table.begin_forward()
    with pytest.raises(ValueError, match="out of order"):
        table.decode()
    with pytest.raises(ValueError, match="not complete"):
        table.end_forward()


def test_pages_of_a_step_in_flight_are_not_written_by_another_slot():
    table = FakeTable(delay=4)
    table.set_pages(0, 0, [0])
    submit(table, prompt_rows([1]))
    with pytest.raises(ValueError, match="page table of slot 0 is in use"):
        table.set_pages(0, 0, [1])
    table.set_pages(0, 1, [1])  # growing is fine
    table.set_pages(1, 0, [0])
    with pytest.raises(ValueError, match="page 0 is written to while slot 0 reads it"):
        submit(table, prompt_rows([2], slot=1))
    table.retire(wait=True)
    submit(table, prompt_rows([2], slot=1))


def test_a_page_that_another_slot_wrote_to_is_no_longer_read():
    table = FakeTable()
    table.set_pages(0, 0, [0])
    submit(table, prompt_rows([1]))
    table.retire(wait=True)
    table.set_pages(1, 0, [0])
    submit(table, prompt_rows([2], slot=1))
    with pytest.raises(ValueError, match="page 0 of slot 0 was overwritten"):
        submit(table, [Row(FROM_DEVICE, 1, 0)], decode=True)


def test_shared_pages_are_read_and_a_copied_page_is_written():
    table = FakeTable(delay=4)
    prompt = list(range(20))
    table.set_pages(0, 0, [0, 1])
    submit(table, prompt_rows(prompt))
    table.set_pages(1, 0, [0, 2])
    table.begin_forward()
    table.copy_pages([(1, 2)])
    table.embed([Row(FROM_DEVICE, 20, 0), Row(19, 19, 1)])
    table.prefill()
    table.logits([0, 1])
    table.sample([Sample(0, 0, 21, GREEDY), Sample(1, 1, 20, GREEDY)])
    table.end_forward()
    expected = continuation(prompt, 2, lambda state, last: state % 256)
    assert table.retire(wait=True).tokens == (expected[0],)
    assert table.retire(wait=True).tokens == (expected[1], expected[0])


@pytest.mark.parametrize("pairs", [[(0, 64)], [(-1, 0)], [(0, 1), (2, 1)], [(0, 1), (1, 2)]])
def test_copies_that_make_no_sense_are_refused(pairs):
    table = FakeTable()
    table.begin_forward()
    with pytest.raises(ValueError):
        table.copy_pages(pairs)


def test_a_broken_prefix_is_noticed():
    table = FakeTable()
    table.set_pages(0, 0, [0, 1])
    submit(table, prompt_rows(range(20)))
    table.set_pages(1, 0, [2, 1])
    with pytest.raises(ValueError, match="follows nothing"):
        submit(table, [Row(5, 18, 1)], draw=False)


def test_logprobs_come_where_they_were_asked_for_and_forced_tokens_change_nothing():
    table = FakeTable()
    table.set_pages(0, 0, [0])
    table.begin_forward()
    table.embed(prompt_rows([5, 6, 7]))
    table.prefill()
    table.logits([0, 1, 2])
    table.sample([Sample(0, 0, 1, GREEDY, 2, 6), Sample(1, 0, 2, GREEDY), Sample(2, 0, 3, GREEDY, 0)])
    table.end_forward()
    retired = table.retire(wait=True)
    assert retired.tokens[0] == 6
    assert retired.logprobs == (
        pretend_logprobs(fold(0, 5), 6, 2),
        None,
        pretend_logprobs(fold(fold(fold(0, 5), 6), 7), retired.tokens[2], 0),
    )


def test_penalties_need_the_counts_of_all_tokens_before():
    params = SamplingParams(temperature=0.0, presence_penalty=1.0)
    table = FakeTable()
    table.set_pages(0, 0, [0])
    for counted in (False, True):
        table.begin_forward()
        table.embed(prompt_rows([5, 6]))
        table.prefill()
        table.logits([1])
        if counted:
            table.set_counts(0, [5], [6])
            table.sample([Sample(1, 0, 2, params)])
            table.end_forward()
        else:
            with pytest.raises(ValueError, match="counted other tokens"):
                table.sample([Sample(1, 0, 2, params)])
    assert table.counted[0] == 3


def test_more_steps_in_flight_than_allowed_are_refused():
    table = FakeTable(small_limits(max_in_flight=1), delay=4)
    table.set_pages(0, 0, [0])
    submit(table, prompt_rows([1]))
    with pytest.raises(ValueError, match="too many steps"):
        table.begin_forward()

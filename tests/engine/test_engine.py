"""Engine.step() over the fake table: what is drawn, when requests end, who waits, and what a failure takes along."""

import time

import pytest

from engine.engine import MAX_WAITING
from engine.errors import ContextTooLong, DeviceFailed, InvalidParameter, QueueFull, RequestRejected
from engine.fake_table import Fault, continuation, small_limits

END = 299


def drawn_tokens(state: int, last: int) -> int:
    return state % 256


@pytest.mark.parametrize("delay", [1, 2, 3, 4])
@pytest.mark.parametrize("prompt_len", [1, 31, 32, 33, 100])
def test_the_answer_is_that_of_the_model(make_driver, delay, prompt_len):
    driver = make_driver(delay=delay)
    prompt = [n % 251 for n in range(prompt_len)]
    driver.add("a", prompt, max_tokens=20)
    driver.run()
    assert driver.tokens() == continuation(prompt, 20, drawn_tokens)
    assert driver.reason() == "length"
    assert driver.last().usage.prompt_tokens == prompt_len
    assert driver.last().usage.completion_tokens == 20


@pytest.mark.parametrize("max_tokens", [1, 2, 5, 17])
@pytest.mark.parametrize("max_in_flight", [1, 4])
def test_max_tokens_is_exact_and_nothing_is_computed_beyond(make_driver, max_tokens, max_in_flight):
    driver = make_driver(small_limits(max_in_flight=max_in_flight), delay=max_in_flight)
    driver.add(max_tokens=max_tokens)
    driver.run()
    assert len(driver.tokens()) == max_tokens
    assert driver.table.last_submitted == max_tokens  # one step of prefill, which draws the first


def test_the_end_of_the_context_ends_the_answer(make_driver):
    driver = make_driver(small_limits(context_length=40))
    driver.add("a", range(30))
    driver.add("b", range(39), max_tokens=100)
    driver.run()
    assert (len(driver.tokens("a")), driver.reason("a")) == (10, "length")
    assert (len(driver.tokens("b")), driver.reason("b")) == (1, "length")


def test_a_prompt_that_fills_the_context_is_refused(make_driver):
    driver = make_driver(small_limits(context_length=40))
    with pytest.raises(ContextTooLong, match="This prompt has 40 tokens; the context holds 40"):
        driver.add("a", range(40))
    assert not driver.engine.has_work


def test_what_never_fits_the_pool_is_refused_and_what_just_fits_runs(make_driver):
    driver = make_driver(small_limits(num_pages=4))
    with pytest.raises(RequestRejected, match="memory for 66 tokens; there is room for 65"):
        driver.add("a", range(10), max_tokens=56)
    driver.add("b", range(10), max_tokens=55)
    driver.add("c", range(10))
    driver.run()
    assert len(driver.tokens("b")) == 55
    assert len(driver.tokens("c")) == 55


@pytest.mark.parametrize("token", [-1, 300])
def test_a_token_outside_the_vocabulary_is_refused(make_driver, token):
    with pytest.raises(InvalidParameter, match="does not know"):
        make_driver().add("a", [1, token])


def test_an_id_that_is_open_is_refused_and_free_again_afterwards(make_driver):
    driver = make_driver()
    driver.add("a", max_tokens=2)
    with pytest.raises(InvalidParameter, match="open already"):
        driver.add("a")
    driver.run()
    driver.add("a", max_tokens=2)
    driver.run()


def test_the_waiting_queue_is_bounded(make_driver):
    driver = make_driver()
    for n in range(MAX_WAITING):
        driver.add(str(n))
    with pytest.raises(QueueFull):
        driver.add("one too many")


def test_end_tokens_end_the_answer_and_are_not_part_of_it(say):
    driver = say([b"Hel", b"lo"])
    assert (driver.text(), driver.tokens(), driver.reason()) == ("Hello", [0, 1], "stop")
    assert driver.last().usage.completion_tokens == 3


def test_ignore_eos_goes_on_past_end_tokens_and_stop_strings(make_driver):
    driver = make_driver(next_token=lambda state, last: END if last == 65 else 65)
    driver.add("a", ignore_eos=True, stop=("AA",), max_tokens=5)
    driver.run()
    assert driver.tokens() == [65, END, 65, END, 65]
    assert (driver.text(), driver.reason()) == ("AAA", "length")


@pytest.mark.parametrize("delay", [1, 4])
def test_a_stop_string_across_tokens_is_cut_at_the_character(say, delay):
    driver = say([b"one t", b"w", b"o thr", b"ee four"], stop=("two", "three"), delay=delay)
    assert (driver.text(), driver.reason()) == ("one ", "stop")
    assert driver.tokens() == [0, 1, 2]


def test_the_start_of_a_stop_string_is_shown_when_it_does_not_come(say):
    driver = say([b"a ST", b"O", b"ne"], stop=("STOP",))
    assert driver.text() == "a STOne"
    assert [delta.text for delta in driver.deltas["a"]][:2] == ["a ", ""]


def test_held_text_is_shown_at_the_end(say):
    assert say([b"a ST", b"O"], stop=("STOP",)).text() == "a STO"
    assert say([b"a ST", b"O"], stop=("STOP",), max_tokens=2).text() == "a STO"


def test_characters_split_across_tokens_arrive_whole(say):
    driver = say(["🤔".encode()[:1], "🤔".encode()[1:3], "🤔é".encode()[3:5], b"\xa9!"])
    assert driver.text() == "🤔é!"
    assert all("\N{REPLACEMENT CHARACTER}" not in delta.text for delta in driver.deltas["a"])


def test_an_unfinished_character_at_the_end_is_marked(say):
    assert say([b"ok", "🤔".encode()[:2]]).text() == "ok\N{REPLACEMENT CHARACTER}"


def test_a_stop_string_with_an_emoji_split_across_tokens(say):
    assert say([b"so", " 🤔".encode()[:3], "🤔".encode()[2:], b"more"], stop=(" 🤔",)).text() == "so"


@pytest.mark.parametrize("delay", [1, 4])
def test_more_requests_than_slots_take_turns_in_order(make_driver, delay):
    driver = make_driver(small_limits(max_slots=2), delay=delay)
    for n in range(6):
        driver.add(str(n), [n + 1] * 20, max_tokens=6)
    ended = []
    while driver.engine.has_work:
        driver.step()
        ended += [name for name in driver.deltas if driver.reason(name) and name not in ended]
    assert ended == sorted(ended)
    for n in range(6):
        assert driver.tokens(str(n)) == continuation([n + 1] * 20, 6, drawn_tokens)


def test_short_of_memory_the_younger_gives_way_and_nothing_is_lost_or_repeated(make_driver):
    driver = make_driver(small_limits(num_pages=6), delay=3)
    driver.add("big", range(40), max_tokens=40)
    driver.add("later", range(100, 120), max_tokens=20)
    driver.run()
    assert driver.engine.state.num_preempted
    assert driver.tokens("big") == continuation(range(40), 40, drawn_tokens)
    assert driver.tokens("later") == continuation(range(100, 120), 20, drawn_tokens)


def test_several_short_prompts_share_a_step(make_driver):
    driver = make_driver()
    for name in "abc":
        driver.add(name, [ord(name)] * 10, max_tokens=1)
    driver.run()
    assert driver.table.last_submitted == 1


def test_a_step_never_draws_more_than_the_table_can(make_driver):
    driver = make_driver(small_limits(max_samples=2, max_slots=5))
    for n in range(5):
        driver.add(str(n), [n + 1], max_tokens=9)
    driver.run()
    assert all(driver.tokens(str(n)) == continuation([n + 1], 9, drawn_tokens) for n in range(5))


def test_a_running_stream_waits_for_one_chunk_at_most(make_driver):
    driver = make_driver(small_limits(max_rows=8, max_in_flight=1))
    driver.add("stream", [1], max_tokens=40)
    while not driver.tokens("stream"):
        driver.step()
    driver.add("long", range(200), max_tokens=1)
    gaps, since = [], 0
    while driver.reason("long") is None:
        before = len(driver.tokens("stream"))
        driver.step()
        since += 1
        if len(driver.tokens("stream")) > before:
            gaps.append(since)
            since = 0
    assert max(gaps) <= 2
    assert len(gaps) >= 20


def test_abort_tells_what_there_is_and_frees_memory_after_the_steps_in_flight(make_driver):
    driver = make_driver(delay=4)
    driver.add("a", max_tokens=50)
    while not driver.tokens():
        driver.step()
    state = driver.engine.state
    assert state.in_flight
    driver.abort("a")
    assert driver.reason() == "abort"
    assert state.slots.num_free < state.slots.count
    told = driver.tokens()
    driver.run()
    assert driver.tokens() == told == continuation([1, 2, 3], 50, drawn_tokens)[: len(told)]


@pytest.mark.parametrize("limits", [{"max_slots": 1}, {"num_pages": 4}])
def test_what_an_abort_frees_is_handed_on_only_after_the_steps_in_flight(make_driver, limits):
    driver = make_driver(small_limits(**limits), delay=4)
    driver.add("a", max_tokens=50)
    while driver.table.in_flight < 3:
        driver.step()
    driver.add("b", [4, 5, 6], max_tokens=50)
    driver.abort("a")
    driver.run()
    assert driver.tokens("b") == continuation([4, 5, 6], 50, drawn_tokens)


def test_abort_while_waiting_and_of_an_unknown_request(make_driver):
    driver = make_driver(small_limits(max_slots=1))
    driver.add("a", max_tokens=4)
    driver.add("b", max_tokens=4)
    driver.step()
    driver.abort("b")
    driver.abort("nobody")
    driver.run()
    assert (driver.reason("a"), driver.reason("b"), driver.tokens("b")) == ("length", "abort", [])


@pytest.mark.parametrize("call", ["begin_forward", "embed", "prefill", "logits", "sample", "end_forward"])
def test_a_failed_step_ends_its_requests_and_no_others(make_driver, call):
    driver = make_driver()
    driver.add("a", max_tokens=30)
    driver.step()
    driver.step()  # a decode step went last, so the prompt of "b" goes next
    driver.add("b", max_tokens=5)
    driver.table.faults.append(Fault(call, driver.table.last_submitted + 1, RuntimeError("boom")))
    driver.run()
    assert driver.reason("b") == "error"
    assert "RuntimeError: boom" in driver.last("b").error
    assert driver.tokens("a") == continuation([1, 2, 3], 30, drawn_tokens)


def test_a_failed_page_table_ends_only_the_newcomer(make_driver):
    driver = make_driver(faults=[Fault("set_pages", 3, ValueError("boom"))])
    driver.add("a", max_tokens=5)
    driver.step()
    driver.step()
    driver.add("b")
    driver.run()
    assert (driver.reason("a"), driver.reason("b")) == ("length", "error")


def test_tokens_that_cannot_be_read_back_end_their_step_only(make_driver):
    driver = make_driver(faults=[Fault("retire", 1, RuntimeError("boom"))])
    driver.add("a", max_tokens=5)
    driver.step()
    driver.add("b", max_tokens=5)
    driver.run()
    assert (driver.reason("a"), driver.reason("b")) == ("error", "length")


def test_a_token_outside_the_vocabulary_ends_its_request_only(make_driver):
    driver = make_driver(next_token=lambda state, last: 300 if last == 7 else 1)
    driver.add("a", [7], max_tokens=5)
    driver.add("b", [8], max_tokens=5)
    driver.run()
    assert (driver.reason("a"), driver.reason("b")) == ("error", "length")


@pytest.mark.parametrize("call", ["end_forward", "retire"])
def test_a_lost_device_is_for_the_owner_of_the_engine_to_handle(make_driver, call):
    driver = make_driver(faults=[Fault(call, 3, DeviceFailed("The GPU is gone."))])
    driver.add("a", max_tokens=50)
    with pytest.raises(DeviceFailed, match="gone"):
        driver.run()
    driver.engine.end_all("error", "The GPU is gone.")
    assert [emission.error for emission in driver.engine.take_outbox()][-1] == "The GPU is gone."


def test_timings_are_measured_at_the_tokens(make_driver):
    driver = make_driver(small_limits(max_in_flight=1, max_rows=8))
    driver.add("a", range(20), max_tokens=4)
    driver.run()
    timings = driver.last().timings
    # The driver's clock counts steps: chunks at 1, 2 and 3; the first token is seen at 4 and one per step after it.
    assert timings.ttft_s == 4.0
    assert timings.prefill_tokens_per_s == pytest.approx(20 / 3)
    assert timings.decode_tokens_per_s == 1.0


def test_decoding_runs_ahead_as_far_as_allowed(make_driver):
    driver = make_driver(delay=4)
    driver.add("a", max_tokens=30)
    most = 0
    while driver.engine.has_work:
        driver.step()
        most = max(most, driver.table.in_flight)
    assert most == 4


@pytest.mark.long
def test_the_books_cost_less_than_60_us_per_decode_step(make_driver):
    driver = make_driver(small_limits(context_length=4096, num_pages=256), delay=4)
    driver.add("a", max_tokens=4000)
    engine, costs = driver.engine, []
    while engine.has_work:
        started = time.thread_time_ns()
        engine.step()
        engine.take_outbox()
        costs.append(time.thread_time_ns() - started)
    assert sorted(costs)[len(costs) // 2] < 60_000

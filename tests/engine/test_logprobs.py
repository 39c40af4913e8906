"""Logprobs beside their tokens, stop ids, deadlines and penalties, through the engine to the stream."""

import pytest

from engine.errors import InvalidParameter
from engine.fake_table import fold, pretend_logprobs, small_limits
from engine.request import SamplingParams


def expected(before, tokens, num_top):
    state, logprobs = 0, []
    for token in before:
        state = fold(state, token)
    for token in tokens:
        logprobs.append(pretend_logprobs(state, token, num_top))
        state = fold(state, token)
    return logprobs


def logprobs_of(driver, request_id="a", index=0):
    return [entry for delta in driver.answer(request_id, index) for entry in delta.logprobs]


@pytest.mark.parametrize("delay", [1, 4])
@pytest.mark.parametrize("num_top", [0, 5, 20])
def test_each_token_has_its_logprob(make_driver, delay, num_top):
    driver = make_driver(delay=delay)
    driver.add("a", [1, 2, 3], max_tokens=9, logprobs=num_top, n=2)
    driver.add("b", [4], max_tokens=9)
    driver.run()
    for index in range(2):
        assert logprobs_of(driver, "a", index) == expected([1, 2, 3], driver.tokens("a", index), num_top)
    assert all(len(delta.logprobs) == len(delta.token_ids) for delta in driver.deltas["a"])
    assert not logprobs_of(driver, "b")


def test_logprobs_stay_beside_tokens_whose_text_is_held_back_or_cut(say):
    driver = say([b"a ST", b"O", b"P no"], stop=("STOP",), logprobs=1)
    assert driver.text() == "a "
    assert [entry.token for entry in logprobs_of(driver)] == driver.tokens() == [0, 1, 2]


def test_an_end_token_has_no_logprob_told(say):
    driver = say([b"a", b"b"], logprobs=1)
    assert [entry.token for entry in logprobs_of(driver)] == driver.tokens() == [0, 1]


@pytest.mark.parametrize("delay", [1, 4])
@pytest.mark.parametrize(("max_rows", "max_samples"), [(32, 8), (5, 3), (4, 1), (64, 64)])
def test_a_prompts_logprobs_come_with_the_first_delta(make_driver, delay, max_rows, max_samples):
    driver = make_driver(small_limits(max_rows=max_rows, max_samples=max_samples), delay=delay)
    prompt = [n * 7 % 250 for n in range(45)]
    driver.add("warm", prompt, max_tokens=2)
    driver.run()
    driver.add("a", prompt, max_tokens=5, prompt_logprobs=3, n=2)
    driver.run()
    first, *others = driver.deltas["a"]
    assert list(first.prompt_logprobs) == expected(prompt[:1], prompt[1:], 3)
    assert first.index == 0
    assert not any(delta.prompt_logprobs for delta in others)
    assert driver.cached("a") == 0


@pytest.mark.parametrize("after", [1, 3, 6])
def test_a_prompts_logprobs_are_each_told_once_though_it_gave_way(make_driver, after):
    driver = make_driver(small_limits(max_rows=8, max_samples=4), delay=3)
    prompt = [n * 7 % 250 for n in range(40)]
    driver.add("a", prompt, max_tokens=5, prompt_logprobs=1, logprobs=1)
    for _ in range(after):
        driver.step()
    state = driver.engine.state
    state.preempt(state.ledger["a"].answers[0])
    driver.run()
    told = [entry for delta in driver.deltas["a"] for entry in delta.prompt_logprobs]
    assert told == expected(prompt[:1], prompt[1:], 1)
    assert logprobs_of(driver) == expected(prompt, driver.tokens(), 1)


def test_a_prompt_of_one_token_has_no_logprobs(make_driver):
    driver = make_driver()
    driver.add("a", [1], max_tokens=2, prompt_logprobs=1)
    driver.run()
    assert not any(delta.prompt_logprobs for delta in driver.deltas["a"])


def test_stop_ids_end_an_answer_as_the_models_own_do(make_driver):
    driver = make_driver(next_token=lambda state, last: last + 1)
    driver.add("a", [10], stop_ids=(14, 99))
    driver.add("b", [10], stop_ids=(14,), ignore_eos=True, max_tokens=6)
    driver.run()
    assert (driver.tokens("a"), driver.reason("a")) == ([11, 12, 13], "stop")
    assert (driver.tokens("b"), driver.reason("b")) == ([11, 12, 13, 14, 15, 16], "length")


def test_a_request_that_takes_too_long_ends_with_an_error(make_driver):
    driver = make_driver(small_limits(max_slots=1), delay=2)
    driver.add("a", range(10), max_tokens=200, deadline_s=20.5, n=2)
    driver.add("waiting", range(10), max_tokens=200, deadline_s=9)
    driver.add("patient", range(10), max_tokens=5, deadline_s=500)
    driver.run()
    assert driver.last("a").error == "This request took longer than its limit of 20.5 s."
    assert driver.last("waiting").error == "This request took longer than its limit of 9 s."
    assert 10 < len(driver.tokens("a")) < 21
    assert driver.reason("patient") == "length"


def test_penalised_requests_run_ahead_as_others_do(make_driver):
    driver = make_driver(delay=4)
    driver.add("a", range(10), max_tokens=30, sampling=SamplingParams(repetition_penalty=1.2))
    most = 0
    while driver.engine.has_work:
        driver.step()
        most = max(most, driver.table.in_flight)
    assert most == 4
    assert max(driver.table.counted.values()) == 40


def test_a_bias_for_a_token_that_is_not_there_is_refused(make_driver):
    with pytest.raises(InvalidParameter, match="logit_bias"):
        make_driver().add("a", sampling=SamplingParams(logit_bias=((300, 1.0),)))

"""What a request may say: every misuse is refused by name, and what is allowed reaches the table as it was said."""

import math

import pytest

from engine.errors import InvalidParameter
from engine.request import Request, SamplingParams

SAMPLING = SamplingParams(
    logit_bias=((7, -3.5), (9, 100.0)),
    repetition_penalty=1.25,
    frequency_penalty=-0.5,
    presence_penalty=1.5,
    temperature=0.75,
    top_k=40,
    top_p=0.875,
    min_p=0.0625,
    seed=12345,
)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_p", 1.01),
        ("top_p", math.nan),
        ("top_p", -0.5),
        ("top_k", -1),
        ("min_p", 1.5),
        ("min_p", math.nan),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", math.nan),
        ("frequency_penalty", 2.5),
        ("presence_penalty", -2.5),
        ("presence_penalty", math.nan),
        ("seed", -1),
        ("seed", 2**64),
        ("logit_bias", ((5, 101.0),)),
        ("logit_bias", ((5, math.nan),)),
        ("logit_bias", ((-1, 1.0),)),
        ("logit_bias", tuple((token, 1.0) for token in range(301))),
    ],
)
def test_sampling_out_of_range_is_refused_by_name(name, value):
    with pytest.raises(InvalidParameter, match=name):
        SamplingParams(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("prompt_ids", ()),
        ("max_tokens", 0),
        ("n", 0),
        ("n", 10_000),
        ("logprobs", 21),
        ("logprobs", -1),
        ("prompt_logprobs", 21),
        ("stop", ("end", "")),
        ("deadline_s", 0.0),
        ("deadline_s", math.nan),
    ],
)
def test_a_request_out_of_range_is_refused_by_name(name, value):
    options = {"request_id": "a", "prompt_ids": (1,)} | {name: value}
    with pytest.raises(InvalidParameter, match=name.removesuffix("_ids").removesuffix("_s")):
        Request(**options)


def test_what_is_asked_reaches_the_table_unchanged_for_each_of_n_answers(make_driver):
    driver = make_driver(delay=2)
    asked = []
    sample = driver.table.sample

    def noted(samples):
        asked.extend(samples)
        sample(samples)

    driver.table.sample = noted
    driver.add("a", [1, 2, 3], sampling=SAMPLING, n=3, max_tokens=4, logprobs=20)
    driver.run()
    assert len(asked) == 3 * 4
    assert {each.top_logprobs for each in asked} == {20}
    assert {each.params for each in asked} == {
        SamplingParams(**{name: getattr(SAMPLING, name) for name in SamplingParams.__slots__} | {"seed": 12345 + index})
        for index in range(3)
    }
    assert {delta.index for delta in driver.deltas["a"]} == {0, 1, 2}

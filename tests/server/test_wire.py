"""The exact events and fields, from an engine that says what the test has it say; and what reaches the engine."""

import itertools
import time

import openai
import pytest

from engine.request import Delta, Request, SamplingParams, TokenLogprobs, Usage

USAGE = Usage(prompt_tokens=7, completion_tokens=3, cached_tokens=5)


def delta(request, **fields):
    return Delta(request_id=request.request_id, **fields)


def two_answers(request):
    yield delta(request, index=1, text="b1", token_ids=(1,))
    yield delta(request, index=0, text="a1", token_ids=(2,))
    yield delta(request, index=1, text="b2", token_ids=(3,), finish_reason="length")
    yield delta(request, index=0, finish_reason="stop", usage=USAGE)


def test_interleaved_answers(scripted):
    events = scripted(two_answers).chat(n=2, stream=True, stream_options={"include_usage": True}).events
    choices = [event["choices"][0] for event in events[:-2]]
    told = [(each["index"], each["delta"], each["finish_reason"]) for each in choices]
    assert told == [
        (0, {"role": "assistant", "content": ""}, None),
        (1, {"role": "assistant", "content": ""}, None),
        (1, {"content": "b1"}, None),
        (0, {"content": "a1"}, None),
        (1, {"content": "b2"}, None),
        (1, {}, "length"),
        (0, {}, "stop"),
    ]
    assert events[-2]["choices"] == []
    assert events[-2]["usage"] == {
        "prompt_tokens": 7,
        "completion_tokens": 3,
        "total_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 5},
    }
    assert events[-1] == "[DONE]"


def test_whole_answers_in_order(scripted):
    answer = scripted(two_answers).client.chat.completions.create(
        model="", messages=[{"role": "user", "content": "Hi"}], n=2
    )
    told = [(choice.index, choice.message.content, choice.finish_reason) for choice in answer.choices]
    assert told == [(0, "a1", "stop"), (1, "b1b2", "length")]
    assert answer.usage.prompt_tokens_details.cached_tokens == 5


@pytest.mark.parametrize("stream", [True, False])
def test_logprobs(stream, scripted):
    cup = "☕".encode()

    def script(request):
        infinity = float("inf")
        top = ((ord("x"), -0.25), (cup[1], -infinity))
        yield delta(request, token_ids=(cup[0],), logprobs=(TokenLogprobs(token=cup[0], logprob=-1.5, top=top),))
        yield delta(request, text="☕", token_ids=tuple(cup[1:]), finish_reason="stop", usage=USAGE)

    reply = scripted(script).chat(logprobs=True, top_logprobs=2, stream=stream)
    choice = reply.events[1]["choices"][0] if stream else reply.json["choices"][0]
    assert choice["logprobs"] == {
        "content": [
            {
                "token": "\ufffd",
                "logprob": -1.5,
                "bytes": [cup[0]],
                "top_logprobs": [
                    {"token": "x", "logprob": -0.25, "bytes": [ord("x")]},
                    {"token": "\ufffd", "logprob": -9999.0, "bytes": [cup[1]]},
                ],
            }
        ],
        "refusal": None,
    }


def test_a_control_token_has_a_name_but_no_bytes(scripted):
    def script(request):
        end = served.engine.model.tokenizer.eos_id
        yield delta(
            request,
            token_ids=(end,),
            logprobs=(TokenLogprobs(token=end, logprob=-0.5),),
            finish_reason="stop",
            usage=USAGE,
        )

    served = scripted(script)
    (entry,) = served.chat(logprobs=True).json["choices"][0]["logprobs"]["content"]
    assert (entry["token"], entry["bytes"], entry["top_logprobs"]) == ("<|im_end|>", None, [])


def test_parameters_reach_the_engine_unchanged(scripted):
    served = scripted(lambda request: iter([delta(request, finish_reason="stop", usage=USAGE)]))
    sent = {
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.5,
        "presence_penalty": -0.5,
        "temperature": 0,
        "top_k": 40,
        "top_p": 0.9,
        "min_p": 0.05,
        "seed": 12345,
    }
    served.chat(
        **sent, logit_bias={"7": -100, "9": 1.5}, max_tokens=5, stop=["a", "b"], n=2, logprobs=True, user="someone"
    )
    (request,) = served.engine.requests
    assert request.sampling == SamplingParams(logit_bias=((7, -100.0), (9, 1.5)), **sent)
    assert (request.max_tokens, request.stop, request.n, request.logprobs) == (5, ("a", "b"), 2, 0)
    assert "someone" not in request.request_id


def test_what_is_not_said_is_the_apis_default(scripted):
    served = scripted(lambda request: iter([delta(request, finish_reason="stop", usage=USAGE)]))
    served.chat(temperature=None, stop=None, n=None, tools=[], tool_choice="none", response_format={"type": "text"})
    served.chat(seed=-1)
    first, second = served.engine.requests
    assert first.sampling == SamplingParams(seed=first.sampling.seed)
    assert second.sampling.seed == 2**64 - 1
    assert first == Request(request_id=first.request_id, prompt_ids=first.prompt_ids, sampling=first.sampling)


def test_an_error_in_the_middle_of_a_stream(scripted):
    def script(request):
        yield delta(request, text="One", token_ids=(1,))
        yield delta(request, finish_reason="error", error="The device was lost.")

    served = scripted(script)
    events = served.chat(stream=True).events
    assert events[-1] == {
        "error": {"message": "The device was lost.", "type": "server_error", "param": None, "code": "engine_error"}
    }
    with pytest.raises(openai.APIError, match="The device was lost"):
        list(served.client.chat.completions.create(model="", messages=[{"role": "user", "content": "Hi"}], stream=True))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("reason", "status"), [("error", 500), ("abort", 503)])
def test_a_failure_before_anything_was_said(reason, status, stream, scripted):
    reply = scripted(lambda request: iter([delta(request, finish_reason=reason)])).chat(stream=stream)
    assert reply.status == status
    assert reply.error["type"] == "server_error"


def test_a_stream_has_its_head_while_the_prompt_is_computed(scripted, monkeypatch):
    monkeypatch.setattr("engine.server.chat._HEAD_AFTER_S", 0.02)

    def script(request):
        time.sleep(0.2)
        yield delta(request, text="One", token_ids=(1,), finish_reason="stop", usage=USAGE)

    chunks = scripted(script).client.chat.completions.create(
        model="", messages=[{"role": "user", "content": "Hi"}], stream=True
    )
    started = time.monotonic()
    moments = [(chunk.choices[0].delta.content, time.monotonic() - started) for chunk in chunks]
    assert [text for text, _ in moments] == ["", "One", None]
    assert moments[1][1] - moments[0][1] > 0.1


def test_empty_deltas_make_no_event(scripted):
    def script(request):
        yield from itertools.repeat(delta(request, token_ids=(1,)), 5)
        yield delta(request, text="One", token_ids=(1,), finish_reason="stop", usage=USAGE)

    assert len(scripted(script).chat(stream=True).events) == 4

"""What went wrong in serving engines before, each by its symptom, as a client of the endpoint would meet it."""

from __future__ import annotations

import threading

import openai
import pytest

from engine.fake_loader import ANSWER
from engine.server.settings import EndpointSettings

HELLO = [{"role": "user", "content": "Hi"}]


def ask(served, messages=HELLO, **fields):
    return served.client.chat.completions.create(model="", messages=messages, **fields)


def from_threads(number: int, work) -> list:
    """What work(0) .. work(number - 1) return, each run in a thread at once."""
    found: dict[int, object] = {}
    threads = [
        threading.Thread(target=lambda index=index: found.update({index: work(index)})) for index in range(number)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return [found[index] for index in range(number)]


@pytest.mark.parametrize("max_open", [100, 10])
def test_seventy_clients_at_once_are_answered_or_told_to_come_again(serve, max_open):
    served = serve(settings=EndpointSettings(max_open=max_open), step_s=0.001)
    replies = from_threads(70, lambda index: served.chat(stream=bool(index % 2)))
    statuses = {reply.status for reply in replies}
    assert statuses == {200} if max_open == 100 else statuses == {200, 429}
    for reply in replies:
        if reply.status == 429:
            assert (reply.error["code"], reply.headers["retry-after"]) == ("queue_full", "1")
        elif reply.headers["content-type"].startswith("text/event-stream"):
            contents = [event["choices"][0]["delta"].get("content", "") for event in reply.events[:-1]]
            assert "".join(contents) == ANSWER
        else:
            assert reply.json["choices"][0]["message"]["content"] == ANSWER
    served.wait_until_idle()
    assert ask(served).choices[0].message.content == ANSWER


@pytest.mark.parametrize("options", [{}, {"max_tokens": 9}])
def test_the_next_turn_of_a_chat_computes_the_last_reply_not_again(serve, options):
    """All but the last token, which is drawn and never fed: an end token, or where the answer was cut short."""
    served = serve()
    messages = [*HELLO]
    for _ in range(3):
        before = ask(served, messages, **options)
        messages += [
            {"role": "assistant", "content": before.choices[0].message.content},
            {"role": "user", "content": "Go on"},
        ]
        cached = ask(served, messages, max_tokens=1).usage.prompt_tokens_details.cached_tokens
        assert cached == before.usage.total_tokens - 1


def test_a_prompt_that_is_too_long_is_a_typed_refusal_and_harms_nobody(serve):
    served = serve(step_s=0.001)
    with ask(served, stream=True) as chunks:
        running = iter(chunks)
        next(running)
        for size in (600, 10**6):
            with pytest.raises(openai.BadRequestError) as refused:
                ask(served, [{"role": "user", "content": "a" * size}])
            assert refused.value.code == "context_length_exceeded"
        text = "".join(chunk.choices[0].delta.content or "" for chunk in running if chunk.choices)
    assert text == ANSWER


def test_an_answer_that_goes_on_for_ever_ends_with_the_context(serve):
    answer = ask(serve(endless=True))
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.total_tokens == 512


def test_hanging_up_does_not_make_the_next_answers_empty(serve):
    served = serve(step_s=0.001)
    for number in range(6):
        with ask(served, stream=True) as chunks:
            for _, _ in zip(range(number + 1), chunks, strict=False):
                pass
        assert ask(served).choices[0].message.content == ANSWER
    served.wait_until_idle()
    assert served.engine.metrics.snapshot()["requests_finished"]["abort"] == 6


@pytest.mark.parametrize("stream", [True, False])
def test_logprobs_are_there_for_every_token_and_not_for_the_first_alone(plain, stream):
    if stream:
        chunks = list(ask(plain, logprobs=True, top_logprobs=20, stream=True))
        entries = [
            entry
            for chunk in chunks
            for choice in chunk.choices
            for entry in (choice.logprobs.content if choice.logprobs else [])
        ]
    else:
        entries = ask(plain, logprobs=True, top_logprobs=20).choices[0].logprobs.content
    assert b"".join(bytes(entry.bytes) for entry in entries).decode() == ANSWER
    assert all(len(entry.top_logprobs) == 20 for entry in entries)
    assert len({entry.logprob for entry in entries}) > 5


def test_an_error_after_the_first_word_is_told_and_the_next_request_is_answered(serve):
    served = serve(step_s=0.001)
    with ask(served, stream=True) as chunks:
        running = iter(chunks)
        next(running)
        table = served.engine.model.table
        table._next_token = lambda state, last: table.limits.vocab_size
        with pytest.raises(openai.APIError, match="Send the message again"):
            list(running)
    served.wait_until_idle()
    table._next_token = lambda state, last: 65
    assert ask(served, max_tokens=3).choices[0].message.content == "AAA"

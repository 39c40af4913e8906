"""What the openai client sees of a conversation."""

import threading

import openai
import pytest

from engine.fake_loader import ANSWER

MODEL = "Pretend-1B-Q4_1"
HELLO = [{"role": "user", "content": "What is an inglenook?"}]


def ask(served, **options):
    return served.client.chat.completions.create(**{"model": MODEL, "messages": HELLO, **options})


def text_of(chunks):
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


def test_models(plain):
    served = plain
    (model,) = served.client.models.list().data
    assert (model.id, model.object, model.owned_by) == (MODEL, "model", "inglenook")
    assert served.client.models.retrieve(MODEL) == model
    with pytest.raises(openai.NotFoundError) as caught:
        served.client.models.retrieve("owner/other")
    assert caught.value.code == "model_not_found"


def test_a_whole_answer(plain):
    answer = ask(plain)
    (choice,) = answer.choices
    assert (choice.index, choice.message.role, choice.message.content) == (0, "assistant", ANSWER)
    assert (choice.finish_reason, choice.logprobs) == ("stop", None)
    assert (answer.object, answer.model) == ("chat.completion", MODEL)
    assert answer.id.startswith("chatcmpl-")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.completion_tokens > 40
    assert 0 <= answer.usage.prompt_tokens_details.cached_tokens < answer.usage.prompt_tokens


def test_a_stream_says_who_speaks_then_what_then_why_it_ends(plain):
    chunks = list(ask(plain, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert text_of(chunks) == ANSWER
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["stop"]
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.object == "chat.completion.chunk" and chunk.usage is None for chunk in chunks)


def test_usage_comes_last_when_asked_for(plain):
    served = plain
    *chunks, last = ask(served, stream=True, stream_options={"include_usage": True})
    assert last.choices == []
    counts = ask(served).usage
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (counts.prompt_tokens, counts.completion_tokens)
    assert all(chunk.usage is None for chunk in chunks)
    reply = served.chat(stream=True, stream_options={"include_usage": True})
    assert all("usage" in event for event in reply.events[:-1])
    assert reply.events[-1] == "[DONE]"
    assert reply.headers["content-type"].startswith("text/event-stream")


@pytest.mark.parametrize(
    ("options", "text", "reason"),
    [
        ({"max_tokens": 2}, "An inglenook", "length"),
        ({"max_completion_tokens": 3, "max_tokens": 9}, "An inglenook is", "length"),
        ({"stop": " corner"}, "An inglenook is the warm", "stop"),
        ({"stop": ["nothing", "the warm"]}, "An inglenook is ", "stop"),
    ],
)
def test_where_an_answer_ends(options, text, reason, plain):
    served = plain
    (choice,) = ask(served, **options).choices
    assert (choice.message.content, choice.finish_reason) == (text, reason)
    chunks = list(ask(served, stream=True, **options))
    assert (text_of(chunks), chunks[-1].choices[0].finish_reason) == (text, reason)


def test_every_kind_of_message(plain):
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "One"}, {"type": "text", "text": "and two"}]},
        {"role": "assistant", "content": None},
        {"role": "tool", "content": "42", "tool_call_id": "a"},
        {"role": "user", "content": "Go on ☕", "name": "somebody"},
    ]
    assert ask(plain, messages=messages).choices[0].message.content == ANSWER


@pytest.mark.parametrize("model", [None, "", MODEL.lower()])
def test_the_model_by_other_names(model, plain):
    assert plain.chat(model=model).status == 200


def test_two_requests_of_one_user_do_not_meet(serve):
    served = serve(step_s=0.001)
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(ask(served, user="same"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answer.choices[0].message.content for answer in answers] == [ANSWER, ANSWER]
    assert answers[0].id != answers[1].id


def test_fields_of_other_servers_are_ignored(plain):
    assert plain.chat(num_ctx=4096, keep_alive="5m", metadata={"a": [1, {"b": None}]}, store=None).status == 200


def test_several_answers_to_one_question(plain):
    answer = ask(plain, n=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    if any(choice.message.content != ANSWER for choice in answer.choices):
        pytest.skip("the engine does not fork yet")
    assert {choice.finish_reason for choice in answer.choices} == {"stop"}


def test_logprobs_of_every_token(plain):
    answer = ask(plain, max_tokens=4, logprobs=True, top_logprobs=2)
    content = answer.choices[0].logprobs.content
    if not content:
        pytest.skip("the engine gives no logprobs yet")
    assert "".join(entry.token for entry in content) == answer.choices[0].message.content
    assert all(len(entry.top_logprobs) == 2 for entry in content)


def test_health(plain):
    reply = plain.call("GET", "/health")
    assert (reply.status, reply.json) == (200, {"status": "ok"})

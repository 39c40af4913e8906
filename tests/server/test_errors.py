"""What is refused, with which status, and which field is named."""

import openai
import pytest

from engine.server.settings import EndpointSettings
from models.errors import TemplateError

HELLO = [{"role": "user", "content": "Hi"}]


def image():
    return [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://a/b.png"}}]}]


# (fields, status, param, code)
REFUSALS = [
    ({"model": "gpt-9"}, 404, "model", "model_not_found"),
    ({"messages": []}, 400, "messages", "invalid_value"),
    ({"messages": "Hi"}, 400, "messages", "invalid_type"),
    ({"messages": [{"content": "Hi"}]}, 400, "messages[0].role", "missing_required_parameter"),
    ({"messages": [{"role": "user"}]}, 400, "messages[0].content", None),
    ({"messages": [{"role": "wizard", "content": "Hi"}]}, 400, "messages[0].role", None),
    ({"messages": [{"role": "user", "content": 5}]}, 400, "messages[0].content", "invalid_type"),
    ({"messages": image()}, 400, "messages[0].content[0]", "unsupported_content"),
    (
        {"messages": [*HELLO, {"role": "assistant", "tool_calls": [{"id": "a"}]}]},
        400,
        "messages[1].tool_calls",
        "unsupported_parameter",
    ),
    ({"messages": [{"role": "user", "content": "a" * 600}]}, 400, "messages", "context_length_exceeded"),
    ({"messages": [{"role": "user", "content": "a" * 60_000}]}, 400, "messages", "context_length_exceeded"),
    ({"temperature": -1}, 400, "temperature", "invalid_value"),
    ({"temperature": "hot"}, 400, "temperature", "invalid_type"),
    ({"top_p": 0}, 400, "top_p", "invalid_value"),
    ({"top_k": -1}, 400, "top_k", "invalid_value"),
    ({"min_p": 2}, 400, "min_p", "invalid_value"),
    ({"seed": 2**64}, 400, "seed", "invalid_value"),
    ({"max_tokens": 0}, 400, "max_tokens", "invalid_value"),
    ({"n": 0}, 400, "n", "invalid_value"),
    ({"n": 17}, 400, "n", "invalid_value"),
    ({"stop": [""]}, 400, "stop", "invalid_value"),
    ({"stop": ["a"] * 17}, 400, "stop", "invalid_value"),
    ({"stop": 5}, 400, "stop", "invalid_type"),
    ({"top_logprobs": 3}, 400, "top_logprobs", "invalid_value"),
    ({"logprobs": True, "top_logprobs": 21}, 400, "top_logprobs", "invalid_value"),
    ({"logit_bias": {"x": 1}}, 400, "logit_bias", "invalid_value"),
    ({"logit_bias": {"99999": 1}}, 400, "logit_bias", "invalid_value"),
    ({"logit_bias": {"1": 101}}, 400, "logit_bias", "invalid_value"),
    ({"frequency_penalty": 3}, 400, "frequency_penalty", "invalid_value"),
    ({"presence_penalty": -3}, 400, "presence_penalty", "invalid_value"),
    ({"repetition_penalty": 0}, 400, "repetition_penalty", "invalid_value"),
    ({"tools": [{"type": "function"}]}, 400, "tools", "unsupported_parameter"),
    ({"tool_choice": "auto"}, 400, "tool_choice", "unsupported_parameter"),
    ({"functions": [{}]}, 400, "functions", "unsupported_parameter"),
    ({"response_format": {"type": "json_object"}}, 400, "response_format", "unsupported_parameter"),
    ({"modalities": ["text", "audio"]}, 400, "modalities", "unsupported_parameter"),
    ({"audio": {"voice": "a"}}, 400, "audio", "unsupported_parameter"),
]


def test_every_refusal_names_its_field(plain):
    for fields, status, param, code in REFUSALS:
        for stream in (False, True):
            reply = plain.chat(**fields, stream=stream)
            told = (reply.status, reply.error["param"], reply.error["code"])
            assert told == (status, param, code), (fields, reply.body)
            assert reply.error["type"] == "invalid_request_error"
            assert reply.error["message"].endswith(".")
    plain.wait_until_idle()


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'"Hi"', b"\xff{}", b"{}", b'{"messages": [], "x": ' + b"[" * 100_000]
)
def test_a_body_that_is_no_chat_request(body, plain):
    reply = plain.call("POST", "/v1/chat/completions", body)
    assert reply.status == 400
    assert "\n" not in reply.error["message"]


def test_the_client_gets_its_own_exceptions(plain):
    with pytest.raises(openai.BadRequestError) as caught:
        plain.client.chat.completions.create(model="", messages=HELLO, temperature=500)
    assert (caught.value.param, caught.value.code) == ("temperature", "invalid_value")
    assert "temperature is 500.0; it must be from 0 to 100." in str(caught.value)


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("POST", "/v1/models", 405, "method_not_allowed"),
        ("GET", "/v1/nothing", 404, "not_found"),
        ("GET", "/", 404, "not_found"),
        ("GET", "/v1/models/", 404, "model_not_found"),
    ],
)
def test_paths_and_methods(method, path, status, code, plain):
    reply = plain.call(method, path)
    assert (reply.status, reply.error["code"]) == (status, code)
    assert ("allow" in reply.headers) == (status == 405)


def test_a_body_that_is_too_large(serve):
    served = serve(settings=EndpointSettings(max_body_bytes=2**20))
    too_large = b'{"messages": [{"role": "user", "content": "' + b"a" * 2**21 + b'"}]}'
    assert served.call("POST", "/v1/chat/completions", too_large).status == 413
    in_chunks = (too_large[start : start + 2**16] for start in range(0, len(too_large), 2**16))
    assert (
        served.call("POST", "/v1/chat/completions", in_chunks)
        .error["message"]
        .startswith("The request is larger than 1 MiB.")
    )
    assert served.chat().status == 200


def test_more_than_may_be_open(serve):
    served = serve(settings=EndpointSettings(max_open=1), endless=True, step_s=0.002)
    with served.client.chat.completions.create(model="", messages=HELLO, stream=True) as chunks:
        next(iter(chunks))
        with pytest.raises(openai.RateLimitError) as caught:
            served.client.chat.completions.create(model="", messages=HELLO)
        assert caught.value.code == "queue_full"
        assert caught.value.response.headers["retry-after"] == "1"
    served.wait_until_idle()


def test_without_a_model(serve):
    served = serve(loaded=False)
    reply = served.chat()
    assert (reply.status, reply.error["code"]) == (503, "no_model")
    assert served.call("GET", "/health").status == 503
    assert served.client.models.list().data == []


def test_a_template_that_refuses_the_conversation(scripted):
    served = scripted(lambda request: iter(()))

    def refuse(*_args, **_options):
        raise TemplateError("The model's chat template refuses this conversation: turns must alternate")

    served.engine.model.chat_template.prompt_ids = refuse
    reply = served.chat()
    assert (reply.status, reply.error["param"]) == (400, "messages")


def test_a_fault_of_ours_is_told_without_a_traceback(scripted):
    served = scripted(lambda request: iter(()))
    served.engine.model.chat_template.prompt_ids = None
    reply = served.chat()
    assert (reply.status, reply.error["type"]) == (500, "server_error")
    assert "Traceback" not in reply.error["message"]

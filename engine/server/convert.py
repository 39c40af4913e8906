"""From a chat request's JSON to the engine's Request: what is honoured, what is refused, and what is missing.

Parses, renders the chat template and tokenizes, which takes time with the prompt's length: runs on a worker thread.
Knows neither HTTP nor streams.
"""

from __future__ import annotations

import functools
import re
import secrets
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from engine.errors import ContextTooLong, EngineError
from engine.loading import LoadedModel
from engine.request import MAX_TOP_LOGPROBS, Request, SamplingParams
from engine.server.errors import ApiError, no_such_model, of_exception
from engine.server.protocol import ChatMessage, ChatRequest
from engine.server.settings import EndpointSettings
from models.chat_template import Message
from models.errors import ModelError
from models.tokenizer import Tokenizer

_T = TypeVar("_T")

_MAX_STOPS = 16
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
# What this endpoint cannot do yet, and the values by which a client says that it does not want it.
_REFUSED: dict[str, tuple[object, ...]] = {
    "tools": ([],),
    "tool_choice": ("none",),
    "functions": ([],),
    "function_call": ("none",),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
}
_decoder = msgspec.json.Decoder(ChatRequest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request for the engine, and how its client wants the answer."""

    request: Request
    model_id: str
    tokenizer: Tokenizer
    stream: bool
    include_usage: bool


def model_id(model: LoadedModel) -> str:
    """The name by which clients ask for the model: its file's, as `inglenook models` shows it."""
    return re.sub(r"-\d{5}-of-\d{5}$", "", model.path.stem)


def is_served(name: str, model: LoadedModel) -> bool:
    """Whether a client that asks for `name` means this model."""
    return name.lower() in (model_id(model).lower(), model.name.lower())


def read_request(body: bytes, model: LoadedModel, settings: EndpointSettings) -> Asked:
    """Understand a request's body. Raises ApiError."""
    try:
        return _asked(_decoder.decode(body), model, settings)
    except msgspec.ValidationError as error:
        raise _wrong_type(str(error)) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise ApiError(400, f"The body is not the JSON of a chat request: {error}.") from error
    except (EngineError, ModelError) as error:
        raise of_exception(error) from error


def _asked(wire: ChatRequest, model: LoadedModel, settings: EndpointSettings) -> Asked:
    if wire.model and not is_served(wire.model, model):
        raise no_such_model(wire.model, model_id(model))
    _refuse_what_is_missing(wire)
    messages = _messages(wire.messages)
    _check_length(messages, model)
    prompt_ids = tuple(model.chat_template.prompt_ids(messages, model.tokenizer, answers=model.answers))
    if len(prompt_ids) >= model.context_length:
        raise ContextTooLong(
            f"This conversation has {len(prompt_ids)} tokens; the context holds {model.context_length}. "
            "Shorten it, or load the model with a larger context."
        )
    request = Request(
        request_id=f"chatcmpl-{secrets.token_hex(12)}",
        prompt_ids=prompt_ids,
        sampling=_sampling(wire, model),
        max_tokens=wire.max_tokens if wire.max_completion_tokens is None else wire.max_completion_tokens,
        stop=_stops(wire) + model.chat_template.stop_texts,
        n=_or(wire.n, 1),
        logprobs=_logprobs(wire),
        use_cache=settings.use_cache and wire.cache_prompt is not False,
        persist=settings.persist and _may_persist(wire),
    )
    include_usage = wire.stream_options is not None and wire.stream_options.include_usage is True
    return Asked(
        request=request,
        model_id=model_id(model),
        tokenizer=model.tokenizer,
        stream=wire.stream is True,
        include_usage=include_usage,
    )


def _may_persist(wire: ChatRequest) -> bool:
    """OpenAI's word for how long what was computed is kept: in memory, or a day (here: as long as there is room)."""
    retention = wire.prompt_cache_retention
    if retention in (None, "24h"):
        return True
    if retention in ("in_memory", "in-memory"):
        return False
    message = f"prompt_cache_retention is {retention}; it must be in_memory or 24h."
    raise ApiError(400, message, param="prompt_cache_retention", code="invalid_value")


def _refuse_what_is_missing(wire: ChatRequest) -> None:
    for name, harmless in _REFUSED.items():
        value = msgspec.json.decode(getattr(wire, name))
        if value is not None and value not in harmless:
            raise ApiError(400, f"{name} is not supported yet. Leave it out.", param=name, code="unsupported_parameter")


def _messages(wire: list[ChatMessage]) -> list[Message]:
    if not wire:
        raise ApiError(400, "messages is empty; it needs at least one message.", param="messages", code="invalid_value")
    return [_message(message, f"messages[{index}]") for index, message in enumerate(wire)]


def _message(wire: ChatMessage, where: str) -> Message:
    role = _ROLES.get(wire.role)
    if role is None:
        allowed = ", ".join(_ROLES)
        raise ApiError(400, f"{where}.role is {wire.role!r}; it must be one of {allowed}.", param=f"{where}.role")
    for name in ("tool_calls", "function_call"):
        if msgspec.json.decode(getattr(wire, name)) not in (None, []):
            message = f"{where}.{name} is not supported yet. Leave it out."
            raise ApiError(400, message, param=f"{where}.{name}", code="unsupported_parameter")
    return {"role": role, "content": _text(wire, where)}


def _text(wire: ChatMessage, where: str) -> str:
    if isinstance(wire.content, str):
        return wire.content
    if wire.content is None:
        if wire.role == "assistant":
            return ""
        raise ApiError(400, f"{where}.content is missing; it must be text.", param=f"{where}.content")
    for index, part in enumerate(wire.content):
        if part.type != "text" or part.text is None:
            place = f"{where}.content[{index}]"
            message = f"{place} has the type {part.type!r}; only text is supported yet."
            raise ApiError(400, message, param=place, code="unsupported_content")
    return "\n".join(part.text or "" for part in wire.content)


def _sampling(wire: ChatRequest, model: LoadedModel) -> SamplingParams:
    default = SamplingParams()
    return SamplingParams(
        logit_bias=_logit_bias(wire, model),
        repetition_penalty=_or(wire.repetition_penalty, default.repetition_penalty),
        frequency_penalty=_or(wire.frequency_penalty, default.frequency_penalty),
        presence_penalty=_or(wire.presence_penalty, default.presence_penalty),
        temperature=_or(wire.temperature, default.temperature),
        top_k=_or(wire.top_k, default.top_k),
        top_p=_or(wire.top_p, default.top_p),
        min_p=_or(wire.min_p, default.min_p),
        seed=_seed(wire),
    )


def _seed(wire: ChatRequest) -> int:
    """Any 64-bit integer: the API's are signed, the engine's are not."""
    if wire.seed is None:
        return secrets.randbits(63)
    return wire.seed % 2**64 if -(2**63) <= wire.seed < 0 else wire.seed


def _logit_bias(wire: ChatRequest, model: LoadedModel) -> tuple[tuple[int, float], ...]:
    pairs: list[tuple[int, float]] = []
    for key, bias in (wire.logit_bias or {}).items():
        if not (key.isascii() and key.isdecimal() and len(key) < 10 and int(key) < model.tokenizer.vocab_size):
            last = model.tokenizer.vocab_size - 1
            message = f"logit_bias has the key {key!r}; keys are token ids from 0 to {last}."
            raise ApiError(400, message, param="logit_bias", code="invalid_value")
        pairs.append((int(key), bias))
    return tuple(pairs)


def _logprobs(wire: ChatRequest) -> int | None:
    """How many likelier tokens to report; None: no logprobs at all."""
    if wire.top_logprobs is None:
        return 0 if wire.logprobs else None
    if not wire.logprobs:
        message = "top_logprobs needs logprobs to be true."
    elif not 0 <= wire.top_logprobs <= MAX_TOP_LOGPROBS:
        message = f"top_logprobs is {wire.top_logprobs}; it must be from 0 to {MAX_TOP_LOGPROBS}."
    else:
        return wire.top_logprobs
    raise ApiError(400, message, param="top_logprobs", code="invalid_value")


def _stops(wire: ChatRequest) -> tuple[str, ...]:
    stops = (wire.stop,) if isinstance(wire.stop, str) else tuple(wire.stop or ())
    if len(stops) > _MAX_STOPS:
        message = f"stop has {len(stops)} texts; it may have {_MAX_STOPS}."
        raise ApiError(400, message, param="stop", code="invalid_value")
    return stops


def _check_length(messages: list[Message], model: LoadedModel) -> None:
    """Refuse what cannot fit whatever its tokens are, before seconds are spent on finding them."""
    length = sum(len(message["content"]) for message in messages)
    if length > model.context_length * _longest_token(model.tokenizer):
        raise ContextTooLong(
            f"This conversation has {length} characters; the context holds {model.context_length} tokens. "
            "Shorten it, or load the model with a larger context."
        )


@functools.lru_cache(maxsize=1)
def _longest_token(tokenizer: Tokenizer) -> int:
    return max(len(tokenizer.token_text(token)) for token in range(tokenizer.vocab_size))


def _wrong_type(complaint: str) -> ApiError:
    """msgspec says "Expected `array`, got `str` - at `$.messages`"; the field comes first in ours."""
    what, _, place = complaint.rstrip("`").partition(" - at `$")
    param = place.lstrip(".") or None
    if missing := re.fullmatch(r"Object missing required field `(\w+)`", what):
        param = f"{param}.{missing[1]}" if param else missing[1]
        return ApiError(400, f"{param} is missing.", param=param, code="missing_required_parameter")
    what = what.replace("`", "")
    return ApiError(400, f"{param or 'The body'}: {what[:1].lower()}{what[1:]}.", param=param, code="invalid_type")


def _or(value: _T | None, default: _T) -> _T:
    return default if value is None else value

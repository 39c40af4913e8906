"""The endpoint's JSON, field by field, as OpenAI's chat completion API has it. Values only: no rule, no engine.

What comes in ignores fields that are not named here, since clients add their own. Any thread.
"""

from __future__ import annotations

from msgspec import UNSET, Raw, Struct, UnsetType


class ContentPart(Struct):
    """One part of a message; only `text` is understood."""

    type: str
    text: str | None = None


class ChatMessage(Struct):
    """One turn of the conversation, as sent."""

    role: str
    content: str | list[ContentPart] | None = None
    tool_calls: Raw = Raw(b"null")
    function_call: Raw = Raw(b"null")


class StreamOptions(Struct):
    """How a stream ends."""

    include_usage: bool | None = None


class ChatRequest(Struct, kw_only=True):
    """The body of POST /v1/chat/completions. null is as good as absent."""

    messages: list[ChatMessage]
    model: str | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    n: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    logit_bias: dict[str, float] | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    prompt_cache_retention: str | None = None
    cache_prompt: bool | None = None
    # Refused unless their value asks for nothing; see convert.py.
    tools: Raw = Raw(b"null")
    tool_choice: Raw = Raw(b"null")
    functions: Raw = Raw(b"null")
    function_call: Raw = Raw(b"null")
    response_format: Raw = Raw(b"null")
    modalities: Raw = Raw(b"null")
    audio: Raw = Raw(b"null")
    prediction: Raw = Raw(b"null")
    web_search_options: Raw = Raw(b"null")


HONOURED = frozenset(ChatRequest.__struct_fields__)


class TopLogprob(Struct):
    """A token that could have been drawn. `bytes` is null for tokens that are no text."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(Struct):
    """A token of the answer and the likeliest ones in its place."""

    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChoiceLogprobs(Struct):
    """Of one answer, or of one chunk of it."""

    content: list[TokenLogprob]
    refusal: None = None


class AnswerMessage(Struct):
    """The answer."""

    content: str
    role: str = "assistant"
    refusal: None = None


class Choice(Struct):
    """One of the n answers."""

    index: int
    message: AnswerMessage
    finish_reason: str
    logprobs: ChoiceLogprobs | None = None


class PromptTokensDetails(Struct):
    """The part of the prompt that was not computed again."""

    cached_tokens: int


class UsageCounts(Struct):
    """Token counts over all n answers."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class ChatCompletion(Struct, kw_only=True):
    """A whole answer."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[Choice]
    usage: UsageCounts


class ChunkDelta(Struct):
    """What a chunk adds to an answer."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChunkChoice(Struct):
    """A chunk's share of one answer."""

    index: int
    delta: ChunkDelta
    logprobs: ChoiceLogprobs | None = None
    finish_reason: str | None = None


class ChatChunk(Struct, kw_only=True):
    """One event of a stream. `usage` is there, mostly null, only where it was asked for."""

    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: UsageCounts | UnsetType | None = UNSET


class ModelCard(Struct):
    """A model that can be asked for."""

    id: str
    created: int
    object: str = "model"
    owned_by: str = "inglenook"


class ModelList(Struct):
    """All of them."""

    data: list[ModelCard]
    object: str = "list"


class ErrorBody(Struct):
    """What went wrong: for people, by kind, the field at fault, for programs."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorEnvelope(Struct):
    """The body of every response that is an error."""

    error: ErrorBody


class Health(Struct):
    """Whether a chat would be answered."""

    status: str

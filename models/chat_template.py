"""A conversation as the model's own prompt: renders the chat template that a GGUF carries.

Owns rendering, limits and the plain templates for models that bring none. Templates come with downloaded files and are
untrusted: they run in minijinja, which reaches neither files nor Python, with a fuel limit that stops endless work
within about 50 ms. Does not know how text is encoded or who wrote the messages. Immutable but for a cache; any thread.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Literal, TypedDict

import minijinja

from models.answer_memory import AnswerMemory
from models.errors import TemplateError, shown
from models.prompt_guard import PromptGuard
from models.tokenizer import Tokenizer, whole_characters

Origin = Literal["model", "chatml", "plain"]

# An instruction or a loop pass costs about one. A real template with ten tools needs 62,000 for 1,000 messages.
_FUEL = 1_000_000
_MAX_INDENT = 16
_NAME = "chat template"
_ROLE = re.compile(r"[A-Za-z][\w-]{0,63}")
_GENERATION_TAG = re.compile(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}")
# What lstrip_blocks strips at the start of a line, on the one line where our settings stand in front.
_LEADING_BLANKS = re.compile(r"\A[ \t]+(?=\{[%#](?!\+))")
_WAY_OUT = "Use another file of this model, or give the prompt as plain text."

_CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_PLAIN = (
    "{% for message in messages %}"
    "{{ message.role | capitalize + ': ' + message.content | trim + '\n\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)


class Message(TypedDict):
    """One turn. `role` is a plain word that the program chooses, `content` is anybody's text."""

    role: str
    content: str


class ChatTemplate:
    """One model's template, compiled."""

    def __init__(
        self,
        source: str,
        *,
        bos: str = "",
        eos: str = "",
        origin: Origin = "model",
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """Compile `source`; `bos` and `eos` are the texts of those tokens. Raises TemplateError on a syntax error."""
        self.origin = origin
        self._bos = bos
        self._eos = eos
        self._now = now
        self._guard: PromptGuard | None = None
        self._source = _LEADING_BLANKS.sub("", _GENERATION_TAG.sub(_plain_block, source))
        self._environment = self._new_environment()
        self._check_syntax()

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, object], tokenizer: Tokenizer) -> "ChatTemplate":
        """The GGUF's own template, else ChatML when the vocabulary has its tokens, else "User: … Assistant: …"."""
        source = metadata.get("tokenizer.chat_template")
        bos, eos = (tokenizer.token_text(-1 if i is None else i) for i in (tokenizer.bos_id, tokenizer.eos_id))
        if isinstance(source, str) and source.strip():
            return cls(source, bos=bos, eos=eos)
        if {"<|im_start|>", "<|im_end|>"} <= tokenizer.control_tokens.keys():
            return cls(_CHATML, bos=bos, eos=eos, origin="chatml")
        return cls(_PLAIN, bos=bos, eos=eos, origin="plain")

    @property
    def notice(self) -> str | None:
        """One sentence for the person when the model brings no template of its own."""
        if self.origin == "model":
            return None
        form = "the ChatML form" if self.origin == "chatml" else 'plain "User:" and "Assistant:" lines'
        return f"This model brings no chat template, so its prompt is written in {form}; answers may be worse."

    @property
    def stop_texts(self) -> tuple[str, ...]:
        """Texts that end an answer because no token does; only for plain lines."""
        return ("\nUser:",) if self.origin == "plain" else ()

    def prompt_ids(
        self,
        messages: Sequence[Mapping[str, object]],
        tokenizer: Tokenizer,
        *,
        add_generation_prompt: bool = True,
        variables: Mapping[str, object] | None = None,
        answers: AnswerMemory | None = None,
    ) -> list[int]:
        """Token ids of the prompt: the template's own control tokens become ids, text in the messages never does.

        Where `answers` knows an assistant's text, its tokens are used as the model wrote them.

        `messages` hold `Message`s, or what a template reads beyond them (`tool_calls`, `reasoning_content`) as JSON
        values; `variables` are further names for the template, such as `tools`. The noncharacters U+FDD0 and U+FDD1 are
        dropped from texts. Raises TemplateError when the template fails or refuses the conversation.
        """
        guard = self._guard_for(tokenizer)
        protected = [_protected_message(guard, message) for message in messages]
        extra = {name: guard.protect(value) for name, value in (variables or {}).items()}
        rendered = self.render(protected, add_generation_prompt=add_generation_prompt, variables=extra)
        known = _known_answers(messages, answers)
        ids: list[int] = []
        for piece in guard.cut(rendered):
            if isinstance(piece, int):
                ids.append(piece)
            elif known and piece.endswith(known[0][0]):
                text, tokens = known.pop(0)
                ids += tokenizer.encode(piece.removesuffix(text), bos=False)
                ids += tokens
            else:
                ids += tokenizer.encode(piece, bos=False)
        if tokenizer.add_bos and tokenizer.bos_id is not None and ids[:1] != [tokenizer.bos_id]:
            ids.insert(0, tokenizer.bos_id)
        return ids

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """The prompt as one text, for display and tests; `prompt_ids` tells control tokens from text. TemplateError."""
        # Absent fields and null ones are the same to templates, as in the transformers library.
        present = [{key: value for key, value in message.items() if value is not None} for message in messages]
        names: dict[str, object] = {"tools": None, "documents": None, **(variables or {})}
        names |= {"messages": present, "add_generation_prompt": add_generation_prompt}
        names |= {"bos_token": self._bos, "eos_token": self._eos}
        try:
            return str(self._environment.render_str(_settings(names) + self._source, _NAME))
        except _Refusal as error:
            raise TemplateError(f"The model's chat template refuses this conversation: {error}") from error
        except (minijinja.TemplateError, ValueError, TypeError, LookupError, RecursionError) as error:
            raise _failure(error) from error

    def _new_environment(self) -> minijinja.Environment:
        return minijinja.Environment(
            fuel=_FUEL,
            debug=False,  # else error messages quote the conversation
            trim_blocks=True,
            lstrip_blocks=True,
            auto_escape_callback=lambda _name: False,
            filters={"tojson": _to_json},
            globals={"raise_exception": _refuse, "strftime_now": self._strftime_now},
        )

    def _check_syntax(self) -> None:
        try:
            self._environment.add_template(_NAME, self._source)
            self._environment.remove_template(_NAME)
        except minijinja.TemplateError as error:
            raise _failure(error) from error

    def _guard_for(self, tokenizer: Tokenizer) -> PromptGuard:
        guard = self._guard
        if guard is None or guard.control_tokens is not tokenizer.control_tokens:
            self._guard = guard = PromptGuard(tokenizer.control_tokens)
        return guard

    def _strftime_now(self, form: str) -> str:
        return self._now().strftime(form)


class _Refusal(Exception):
    """The template called raise_exception."""


def _refuse(message: object = "") -> str:
    raise _Refusal(shown(str(message)))


def _known_answers(
    messages: Sequence[Mapping[str, object]], answers: AnswerMemory | None
) -> list[tuple[str, tuple[int, ...]]]:
    """The assistant's texts whose tokens are known, in the order in which the prompt will have them."""
    found: list[tuple[str, tuple[int, ...]]] = []
    for message in messages if answers is not None else ():
        content = message.get("content")
        if answers is not None and message.get("role") == "assistant" and isinstance(content, str):
            tokens = answers.recall(content)
            if tokens is not None:
                found.append((content, tokens))
    return found


def _protected_message(guard: PromptGuard, message: Mapping[str, object]) -> Mapping[str, object]:
    role = message.get("role")
    if not isinstance(role, str) or not _ROLE.fullmatch(role):
        raise TemplateError(f"A message has the role {shown(str(role))}; use a plain word such as user or assistant.")
    protected = guard.protect(message)
    assert isinstance(protected, dict)
    return protected


def _settings(names: Mapping[str, object]) -> str:
    """Source, on one line, that gives a template its names as literals.

    Python lists and dicts would bring their methods along: a hostile template could grow a list without end, and no
    fuel is spent inside Python. Literals become the engine's own immutable values. Compiling them costs some 0.1 ms.
    """
    settings = [f"{{% set {name} = {_literal(value)} %}}" for name, value in names.items() if name.isidentifier()]
    return "".join(settings) + "{{ '' }}"  # a last block would eat the template's first line end


def _literal(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(whole_characters(value))
    if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return repr(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_literal(str(key))}:{_literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return "[" + ",".join(map(_literal, value)) + "]"
    raise TypeError(f"a {type(value).__name__} is no JSON value")


def _plain_block(tag: re.Match[str]) -> str:
    """`generation` marks the assistant's text for training; an `if` keeps its effect on white space."""
    before, is_end, after = tag.groups()
    return f"{{%{before} {'endif' if is_end else 'if true'} {after}%}}"


def _to_json(
    value: object,
    indent: int | None = None,
    ensure_ascii: bool = False,
    separators: Sequence[str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as chat templates expect it: no HTML escapes, keys in their order."""
    return json.dumps(
        value,
        indent=None if indent is None else min(int(indent), _MAX_INDENT),
        ensure_ascii=ensure_ascii,
        separators=None if separators is None else (separators[0], separators[1]),
        sort_keys=sort_keys,
    )


def _failure(error: Exception) -> TemplateError:
    kind = getattr(error, "kind", "")
    if kind == "OutOfFuel":
        return TemplateError(f"The model's chat template does too much work for this conversation. {_WAY_OUT}")
    line = getattr(error, "line", None)
    where = f" in line {line}" if line else ""
    detail = getattr(error, "detail", None) or getattr(error, "message", None) or str(error)
    return TemplateError(f"The model's chat template has an error{where}: {shown(detail)}. {_WAY_OUT}")

"""Chat templates: rendered as Jinja2 renders them, kept in bounds, and closed to control tokens in people's text."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models import library
from models.chat_template import ChatTemplate, Message
from models.errors import TemplateError
from models.gguf import open_gguf
from models.tokenizer import _BYTE_OF, Tokenizer

DATA = Path(__file__).parent.parent / "data"
CASES = json.loads((DATA / "chat_templates" / "cases.json").read_text(encoding="utf-8"))
NOW = datetime.fromisoformat(CASES["now"])
TEMPLATES = {path.name: path for path in sorted((DATA / "chat_templates" / "templates").glob("*.jinja"))}
Case = tuple[list[dict[str, Any]], bool, dict[str, Any]]


def message_list(name: str) -> Case:
    rest = dict(CASES["message_lists"][name])
    return rest.pop("messages"), rest.pop("add_generation_prompt"), rest


class GenerationTag(jinja2.ext.Extension):
    """The tag that marks an assistant's text: only its body counts here."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def oracle(source: str, case: Case) -> str:
    """The same render by Jinja2 with the settings of the transformers library."""

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    environment.globals |= {"raise_exception": refuse, "strftime_now": NOW.strftime}
    messages, add_generation_prompt, variables = case
    names = {"tools": None, "documents": None, **variables, "bos_token": "<s>", "eos_token": "</s>"}
    return environment.from_string(source).render(
        messages=messages, add_generation_prompt=add_generation_prompt, **names
    )


def ours(source: str, case: Case) -> str:
    messages, add_generation_prompt, variables = case
    template = ChatTemplate(source, bos="<s>", eos="</s>", now=lambda: NOW)
    return template.render(messages, add_generation_prompt=add_generation_prompt, variables=variables)


@pytest.mark.parametrize(("template", "name"), list(product(TEMPLATES, CASES["message_lists"])))
def test_renders_like_jinja2(template: str, name: str) -> None:
    source = TEMPLATES[template].read_text(encoding="utf-8")
    try:
        expected = oracle(source, message_list(name))
    except (jinja2.TemplateError, TypeError):
        with pytest.raises(TemplateError) as caught:
            ours(source, message_list(name))
        assert "\n" not in str(caught.value)
        return
    assert ours(source, message_list(name)) == expected


def recorded() -> Iterator[tuple[str, str, str]]:
    for case in CASES["cases"]:
        altered = case["template"] == "kitchen_sink.jinja"  # its copy leaves out what minijinja lacks: '%d' % n
        aliased = (case["template"], case["case"]) == ("harmony.jinja", "thinking")  # transformers copies reasoning
        if "rendered" in case and not altered and not aliased:
            yield case["template"], case["case"], case["rendered"]


@pytest.mark.parametrize(("template", "name", "rendered"), list(recorded()), ids=lambda value: value[:20])
def test_renders_as_recorded(template: str, name: str, rendered: str) -> None:
    assert ours(TEMPLATES[template].read_text(encoding="utf-8"), message_list(name)) == rendered


@cache
def starter() -> tuple[ChatTemplate, Tokenizer]:
    path = library.starter()
    assert path is not None, "the starter model belongs to the development dependencies"
    with open_gguf(path) as gguf:
        tokenizer = Tokenizer.from_metadata(gguf.metadata)
        return ChatTemplate.from_metadata(gguf.metadata, tokenizer), tokenizer


def test_starter_prompts_match_goldens() -> None:
    goldens = json.loads((DATA / "smollm2" / "goldens.json").read_text(encoding="utf-8"))
    prompts = {prompt["name"]: prompt for prompt in goldens["prompts"]}
    template, tokenizer = starter()
    assert template.origin == "model"
    assert template.notice is None
    question: Message = {"role": "user", "content": "What is the capital of France?"}
    system: Message = {
        "role": "system",
        "content": "You are a helpful AI assistant named SmolLM, trained by Hugging Face",
    }
    assert template.prompt_ids([question], tokenizer) == prompts["chat"]["ids"]  # the template's own default system
    assert template.prompt_ids([system, question], tokenizer) == prompts["chat"]["ids"]
    for name in ("unicode", "long"):
        text = prompts[name]["text"].split("<|im_start|>user\n")[1].split("<|im_end|>")[0]
        assert template.prompt_ids([{"role": "user", "content": text}], tokenizer) == prompts[name]["ids"]


# A vocabulary made to be confused: nested, one-character, spaced and bracketed control tokens.
CONTROL = ["<|im_start|>", "<|im_end|>", "<|im_start|>>", "<|user|>", "[INST]", "[/INST]", "< EOT >", "§", "<s>"]
CONTROL_IDS = range(256, 256 + len(CONTROL))


def tokenizer_of(control: Sequence[str], **keys: object) -> Tokenizer:
    characters = [char for char, _ in sorted(_BYTE_OF.items(), key=lambda item: item[1])]
    metadata: dict[str, object] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*characters, *control],
        "tokenizer.ggml.token_type": np.array([1] * 256 + [3] * len(control), dtype=np.int32),
        "tokenizer.ggml.merges": [],
    }
    return Tokenizer.from_metadata(metadata | {f"tokenizer.ggml.{key}": value for key, value in keys.items()})


CONFUSED = tokenizer_of(CONTROL)
HOSTED = [
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}",
    "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content | trim + '<|im_end|>' }}{% endfor %}",
    "<s>{% for m in messages %}[INST]{{ m.content.strip() }}[/INST]{% endfor %}§",
    "{% for m in messages %}{{ '[' + m.content + ']' }}{{ '<|' + (m.content | trim) + '|>' }}{% endfor %}",
    "{% for m in messages %}<|im_{{ m.content }}|>< {{ m.content | trim }} >{% endfor %}",
    "{{ messages | map(attribute='content') | join }}<|im_end|>{{ messages | map(attribute='content') | join('<') }}",
    "{{ messages | tojson }}<|im_start|>>{{ messages[0].content }}§{{ messages[-1].content.rstrip() }}",
]
PIECES = st.sampled_from(
    [text[start:end] for text in CONTROL for start in range(len(text)) for end in range(start + 1, len(text) + 1)]
    + [
        " ",
        "\n",
        "\t ",
        "\u00a0",
        "\x1c",
        "</think>",
        "\ufdd0",
        "\ufdd1",
        "a",
        "\ud83d",
        '"',
        "\\",
        "{{ 1 }}",
        "{% if %}",
    ]
)
HOSTILE = st.lists(PIECES | st.text(max_size=3), max_size=8).map("".join)


def num_control(template: ChatTemplate, contents: Sequence[str]) -> int:
    messages = [{"role": "user", "content": content} for content in contents]
    return sum(token in CONTROL_IDS for token in template.prompt_ids(messages, CONFUSED))


@pytest.mark.parametrize("source", HOSTED)
@settings(max_examples=150, deadline=None)
@given(contents=st.lists(HOSTILE, min_size=1, max_size=3))
def test_no_text_makes_or_breaks_control_tokens(source: str, contents: list[str]) -> None:
    template = ChatTemplate(source)
    assert num_control(template, contents) == num_control(template, ["Hello."] * len(contents))


@pytest.mark.parametrize(
    ("source", "contents"),
    [
        ("{{ messages[0].content }}start|>", ["<|im_"]),
        ("{{ messages[0].content | trim }}start|>", ["a <|im_ \n"]),
        ("{{ messages[0].content }}EOT >", ["<|im_start|>< "]),
        ("{{ messages[0].content }}<|im_end|>", ["<|im_start|"]),
        ("<|im_{{ messages[0].content | trim }}", [" start|> x"]),
        ("<|im_start|>{{ messages[0].content }}", ["> quoted"]),
        ("<|{{ messages[0].content | trim }}|>", [" user"]),
        ("[{{ messages[0].content }}]", ["INST"]),
        ("{{ messages[0].content }}{{ messages[1].content }}{{ messages[2].content }}", ["<|", "us", "er|>"]),
        ("{{ messages[0].content }}", ["§"]),
        ("§{{ messages[0].content }}", ["ST] §"]),
    ],
)
def test_text_completes_no_control_token(source: str, contents: list[str]) -> None:
    template = ChatTemplate(source)
    assert num_control(template, contents) == num_control(template, ["Hello."] * len(contents))


@settings(max_examples=100, deadline=None)
@given(content=HOSTILE)
def test_text_arrives_whole(content: str) -> None:
    template = ChatTemplate(HOSTED[0])
    ids = template.prompt_ids([{"role": "user", "content": content}], CONFUSED)
    kept = content.replace("\ufdd0", "").replace("\ufdd1", "")
    assert CONFUSED.decode(ids) == "user\n" + CONFUSED.decode(CONFUSED.encode(kept)) + "\n"


@settings(max_examples=100, deadline=None)
@given(content=HOSTILE)
def test_starter_counts_its_own_control_tokens_only(content: str) -> None:
    template, tokenizer = starter()
    ids = template.prompt_ids([{"role": "user", "content": content}], tokenizer)
    assert [token for token in ids if token < 17] == [1, 2, 1, 2, 1]


def test_text_inside_other_fields_is_guarded_too() -> None:
    source = (
        "{{ messages[0].tool_calls[0].arguments.city }}{% for k, v in tools[0].items() %}{{ k }}{{ v }}{% endfor %}"
    )
    message = {"role": "user", "content": "", "tool_calls": [{"type": "function", "arguments": {"city": "<|user|>"}}]}
    tools = [{"[INST]": "§", "type": "<|im_end|>"}]
    ids = ChatTemplate(source).prompt_ids([message], CONFUSED, variables={"tools": tools})
    assert not set(ids) & set(CONTROL_IDS)
    assert CONFUSED.decode(ids) == "<|user|>[INST]§type<|im_end|>"


def test_templates_still_trim_split_and_compare_text() -> None:
    source = (
        "{% set parts = messages[0].content.split('</think>') %}{{ parts[0] | trim }}|{{ parts[-1].strip() }}|"
        "{{ messages[0].content.startswith('<think>') }}|{{ messages[1].content | trim == 'yes' }}|"
        "{{ messages[1].parts[0].type == 'text' }}"
    )
    messages: list[Mapping[str, object]] = [
        {"role": "assistant", "content": "<think>  why <|im_end|> </think>\n <|im_start "},
        {"role": "user", "content": " yes\n", "parts": [{"type": "text"}]},
    ]
    ids = ChatTemplate(source).prompt_ids(messages, tokenizer_of([*CONTROL, "<|endoftext|>"]))
    assert CONFUSED.decode(ids) == "<think>  why <|im_end|>|<|im_start|True|True|True"


@pytest.mark.parametrize("role", ["", "a b", "user|>", "<|user|>", "ü", None, 3, "x" * 65])
def test_roles_are_plain_words(role: object) -> None:
    with pytest.raises(TemplateError, match="role"):
        ChatTemplate(HOSTED[0]).prompt_ids([{"role": role, "content": "Hello"}], CONFUSED)


def test_bos_comes_once() -> None:
    bos = tokenizer_of(CONTROL, bos_token_id=CONTROL_IDS[-1], add_bos_token=True)
    message: Message = {"role": "user", "content": "Hi"}
    for source in ("{{ messages[0].content }}", "{{ bos_token }}{{ messages[0].content }}"):
        template = ChatTemplate.from_metadata({"tokenizer.chat_template": source}, bos)
        assert template.prompt_ids([message], bos) == [CONTROL_IDS[-1], *bos.encode("Hi", bos=False)]


def test_models_without_a_template() -> None:
    messages: list[Message] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " Hi \n"}]
    chatml = ChatTemplate.from_metadata({}, CONFUSED)
    assert (chatml.origin, chatml.stop_texts) == ("chatml", ())
    assert chatml.render(messages[1:]) == "<|im_start|>user\n Hi \n<|im_end|>\n<|im_start|>assistant\n"
    plain = ChatTemplate.from_metadata({"tokenizer.chat_template": " "}, tokenizer_of(["<s>"]))
    assert (plain.origin, plain.stop_texts) == ("plain", ("\nUser:",))
    assert plain.render(messages) == "System: Be brief.\n\nUser: Hi\n\nAssistant:"
    for template in (chatml, plain):
        assert template.notice is not None
        assert "\n" not in template.notice


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("\n\n{% if %}", "line 3"),
        ("{{ messages | nonsense }}", "nonsense"),
        ("\n{{ 1 / 0 }}", "line 2"),
        ("{{ raise_exception('only\nuser turns') }}", "refuses this conversation.*turns"),
        ("{% for i in range(9000) %}{% for j in range(9000) %}{% endfor %}{% endfor %}", "too much work"),
        ("{{ 'a' * 10 ** 9 }}", "too much work"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion"),
        ("{{ messages.append(1) }}", "append"),
        ("{{ messages[0].pop('role') }}", "pop"),
        ("{{ messages.__class__.__mro__ }}", "undefined"),
        ("{{ messages | tojson(indent='x') }}", "indent|int"),
        ("{{ messages | tojson(separators='') }}", "index"),
        ("{{ strftime_now(3) }}", "str"),
        ("{% include 'other' %}", "other"),
    ],
)
def test_bad_templates_fail_with_one_line(source: str, says: str) -> None:
    with pytest.raises(TemplateError, match=says) as caught:
        ChatTemplate(source).render([{"role": "user", "content": "private words"}])
    assert "\n" not in str(caught.value)
    assert "private words" not in str(caught.value)


def test_values_that_are_no_json_fail() -> None:
    with pytest.raises(TemplateError, match="bytes"):
        ChatTemplate("x").render([{"role": "user", "content": b"raw"}])
    deep: list[object] = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(TemplateError):
        ChatTemplate("x").render([{"role": "user", "content": "", "more": deep}])


def test_generation_tag_keeps_white_space_rules() -> None:
    source = "a \n  {%- generation -%}\n b {% endgeneration %}\nc"
    assert ChatTemplate(source).render([]) == ChatTemplate("a \n  {%- if 1 -%}\n b {% endif %}\nc").render([]) == "ab c"


@pytest.mark.parametrize(
    "source", ["  {% if true %}\n x{% endif %}", "\n x\n", "  {%+ if true %}y{% endif %}", "{#\n#}\nz"]
)
def test_first_line_keeps_white_space_rules(source: str) -> None:
    assert ours(source, message_list("single")) == oracle(source, message_list("single"))


@settings(max_examples=100, deadline=None)
@given(st.text())
def test_text_passes_rendering_unchanged(text: str) -> None:
    template = ChatTemplate("{{ messages[0].content }}{{ extra.k[0] }}")
    messages = [{"role": "user", "content": text}]
    assert template.render(messages, variables={"extra": {"k": [text]}}) == text * 2

"""What went wrong in serving engines before, each by its symptom: what a model's own file says of prompts and ends."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest

from models.chat_template import ChatTemplate
from models.tokenizer import _BYTE_OF, Tokenizer

DATA = Path(__file__).parent.parent / "data" / "chat_templates"
BYTES = [char for char, _ in sorted(_BYTE_OF.items(), key=lambda item: item[1])]
CHATML = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]


def tokenizer(*, kinds: tuple[int, ...] = (3, 3, 3), **keys: object) -> Tokenizer:
    metadata: dict[str, object] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*BYTES, *CHATML],
        "tokenizer.ggml.token_type": [1] * 256 + list(kinds),
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.eos_token_id": 258,
    }
    return Tokenizer.from_metadata(metadata | {f"tokenizer.ggml.{key}": value for key, value in keys.items()})


@pytest.mark.parametrize("template", ["llama3.jinja", "chatml.jinja", "qwen3.jinja"])
def test_a_prompt_is_not_off_by_a_line_end_a_doubled_beginning_or_a_missing_header(template: str) -> None:
    """To the character what the models were trained with, which is on record, and each of them once."""
    cases = json.loads((DATA / "cases.json").read_text(encoding="utf-8"))
    source = (DATA / "templates" / template).read_text(encoding="utf-8")
    ours = ChatTemplate(source, bos="<s>", eos="</s>", now=lambda: datetime.fromisoformat(cases["now"]))
    recorded = [case for case in cases["cases"] if case["template"] == template and "rendered" in case]
    assert len(recorded) > 3
    for case in recorded:
        rest = dict(cases["message_lists"][case["case"]])
        messages, begin = rest.pop("messages"), rest.pop("add_generation_prompt")
        rendered = ours.render(messages, add_generation_prompt=begin, variables=rest)
        assert rendered == case["rendered"], case["case"]
        assert rendered.count("<s>") == case["rendered"].count("<s>") <= 1


@pytest.mark.parametrize(
    ("keys", "stops"),
    [
        ({}, {257, 258}),  # its end of text is named, and its end of turn goes by a known name
        ({"eos_token_id": 257}, {257, 258}),
        ({"eot_token_id": 65, "kinds": (3, 1, 3)}, {65, 258}),  # named outright, whatever its text
        ({"eos_token_id": 257, "eom_token_id": 66}, {66, 257, 258}),
    ],
)
def test_the_end_tokens_are_those_of_the_models_own_file_and_none_is_forgotten(keys: dict, stops: set[int]) -> None:
    assert tokenizer(**keys).stop_ids == stops

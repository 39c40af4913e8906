"""The tokenizer against the goldens of two other implementations, and its corners on a small vocabulary."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models import library
from models.errors import CorruptFile, UnsupportedArchitecture
from models.gguf import open_gguf
from models.pretokenizers import PRE_TOKENIZERS, pre_tokenizer
from models.tokenizer import _BYTE_OF, Tokenizer

DATA = Path(__file__).parent.parent / "data" / "smollm2"
BYTES = [char for char, _ in sorted(_BYTE_OF.items(), key=lambda item: item[1])]


@cache
def starter() -> Tokenizer:
    path = library.starter()
    assert path is not None, "the starter model belongs to the development dependencies"
    with open_gguf(path) as gguf:
        return Tokenizer.from_metadata(gguf.metadata)


def small(**changes: object) -> dict[str, object]:
    """Metadata of a vocabulary with every byte, two merges and four special tokens (ids 258 to 261)."""
    tokens = [*BYTES, "th", "the", "<|end|>", "<|start|>", "<think>", "<unused>"]
    metadata = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": np.array([1] * 258 + [3, 3, 4, 5], dtype=np.int32),
        "merges": ["t h", "th e"],
        "bos_token_id": 259,
        "eos_token_id": 258,
        "add_bos_token": False,
    }
    merged = {f"tokenizer.ggml.{key}": value for key, value in (metadata | changes).items()}
    return {key: value for key, value in merged.items() if value is not None}


GOLDENS = json.loads((DATA / "tokenizer.json").read_text(encoding="utf-8"))["strings"]


@pytest.mark.parametrize("golden", GOLDENS, ids=lambda golden: ascii(golden["text"])[:30])
def test_starter_agrees_with_goldens(golden: dict[str, object]) -> None:
    text = golden["text"]
    assert isinstance(text, str)
    assert starter().encode(text, special=True) == golden["ids"]
    assert starter().encode(text) == golden["ids_no_special"]
    assert starter().decode(starter().encode(text)) == text


def test_starter_prompts_and_ids() -> None:
    for prompt in json.loads((DATA / "goldens.json").read_text(encoding="utf-8"))["prompts"]:
        assert starter().encode(prompt["text"], special=True) == prompt["ids"]
    tokenizer = starter()
    assert (tokenizer.vocab_size, tokenizer.bos_id, tokenizer.eos_id, tokenizer.add_bos) == (49152, 1, 2, False)
    assert tokenizer.stop_ids == {0, 2}


def test_starter_builds_and_encodes_fast() -> None:
    path = library.starter()
    assert path is not None
    with open_gguf(path) as gguf:
        begin = time.perf_counter()
        tokenizer = Tokenizer.from_metadata(gguf.metadata)
        assert time.perf_counter() - begin < 2  # some 0.1 s on an idle computer
    text = "The harbour town sat at the mouth of a slow brown river; 42 boats left. " * 140
    begin = time.perf_counter()
    tokenizer.encode(text)
    assert time.perf_counter() - begin < 0.5  # some 3 ms


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_any_text_comes_back(text: str) -> None:
    tokenizer = Tokenizer.from_metadata(small())
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert not set(ids) & set(tokenizer.control_tokens.values())


def test_special_text_is_a_token_only_when_asked() -> None:
    tokenizer = Tokenizer.from_metadata(small())
    assert tokenizer.encode("the<|end|>", special=True) == [257, 258]
    assert 258 not in tokenizer.encode("the<|end|>")
    assert tokenizer.encode("<think>the") == [260, 257]  # user-defined: in any text
    assert 261 not in tokenizer.encode("<unused>", special=True)


def test_longest_special_token_wins() -> None:
    tokens = [*BYTES, "<a", "<a>", "<a>>"]
    tokenizer = Tokenizer.from_metadata(
        small(tokens=tokens, token_type=[1] * 256 + [3, 3, 3], merges=[], bos_token_id=None, eos_token_id=None)
    )
    assert tokenizer.encode("<a>><a><a", special=True) == [258, 257, 256]


def test_no_merge_reaches_a_control_token() -> None:
    types = [1] * 256 + [1, 3, 3, 3, 4, 5]  # "the" is control here
    tokenizer = Tokenizer.from_metadata(small(token_type=types))
    assert 257 not in tokenizer.encode("the")
    assert tokenizer.decode(tokenizer.encode("the")) == "the"


def test_bos() -> None:
    tokenizer = Tokenizer.from_metadata(small(add_bos_token=True))
    assert tokenizer.encode("the") == [259, 257]
    assert tokenizer.encode("the", bos=False) == [257]
    assert Tokenizer.from_metadata(small()).encode("the", bos=True) == [259, 257]
    unsaid = small(pre="llama-bpe", add_bos_token=None)
    assert Tokenizer.from_metadata(unsaid).add_bos
    assert not Tokenizer.from_metadata(small(add_bos_token=True, bos_token_id=None)).add_bos


def test_bytes_of_tokens() -> None:
    tokenizer = Tokenizer.from_metadata(small())
    assert [tokenizer.token_bytes(token) for token in range(256)] == [bytes([byte]) for byte in range(256)]
    assert tokenizer.token_bytes(257) == b"the"
    assert tokenizer.token_bytes(260) == b"<think>"
    assert tokenizer.token_bytes(258) == tokenizer.token_bytes(261) == b""
    assert tokenizer.token_bytes(262) == tokenizer.token_bytes(-1) == b""
    assert (tokenizer.token_text(258), tokenizer.token_text(262)) == ("<|end|>", "")
    assert tokenizer.decode([0xE2, 0x82, 0xAC, 258, 0xE2]) == "€\ufffd"


def test_half_surrogates_become_replacement_characters() -> None:
    tokenizer = Tokenizer.from_metadata(small())
    assert tokenizer.decode(tokenizer.encode("a\ud83db")) == "a\ufffdb"
    assert tokenizer.decode(tokenizer.encode("\ud83d\ude00")) == "😀"


def test_stop_ids() -> None:
    tokens = [*BYTES, "<|end|>", "<|return|>", "<|call|>", "<|im_end|>", "<x>"]

    def stops(types: list[int], **keys: object) -> frozenset[int]:
        changes = small(tokens=tokens, token_type=[1] * 256 + types, merges=[], bos_token_id=None, eos_token_id=260)
        return Tokenizer.from_metadata(changes | keys).stop_ids

    assert stops([3, 1, 1, 3, 3]) == {256, 259, 260}
    assert stops([3, 3, 3, 3, 3]) == {259, 260}  # harmony: <|end|> goes on
    assert stops([1, 1, 1, 1, 3], **{"tokenizer.ggml.eot_token_id": 257}) == {257, 260}


def test_many_threads_encode_alike() -> None:
    text = "Once upon a time, in a small village near the sea. 123 <|im_end|> café 世界 " * 20
    expected = starter().encode(text)
    with ThreadPoolExecutor(8) as pool:
        assert all(ids == expected for ids in pool.map(starter().encode, [text] * 64))


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"model": "llama"}, UnsupportedArchitecture, "SentencePiece"),
        ({"model": "wubtok"}, UnsupportedArchitecture, "wubtok"),
        ({"model": None}, UnsupportedArchitecture, "no tokenizer"),
        ({"model": 7}, CorruptFile, "model isn't text"),
        ({"pre": "qwen3"}, UnsupportedArchitecture, "qwen35"),
        ({"tokens": None}, CorruptFile, "tokens"),
        ({"tokens": []}, CorruptFile, "empty"),
        ({"tokens": "abc"}, CorruptFile, "tokens"),
        ({"token_type": [1, 2, 3]}, CorruptFile, "3 token types"),
        ({"token_type": "x"}, CorruptFile, "token_type"),
        ({"merges": ["th"]}, CorruptFile, "pair"),
        ({"merges": ["th "]}, CorruptFile, "pair"),
        ({"merges": ["q zz"]}, CorruptFile, "zz"),
        ({"eos_token_id": "2"}, CorruptFile, "eos_token_id"),
        ({"add_bos_token": 1}, CorruptFile, "add_bos_token"),
    ],
)
def test_bad_metadata_is_refused(changes: dict[str, object], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says) as caught:
        Tokenizer.from_metadata(small(**changes))
    assert "\n" not in str(caught.value)


def test_ids_outside_the_vocabulary_are_ignored() -> None:
    tokenizer = Tokenizer.from_metadata(small(eos_token_id=4_000_000_000, bos_token_id=-1))
    assert tokenizer.eos_id is tokenizer.bos_id is None
    assert 258 in tokenizer.stop_ids  # <|end|>, known by its text


def test_tiny_models_of_the_test_data_load() -> None:
    with open_gguf(DATA.parent / "gguf_llama" / "tiny-Q4_0.gguf") as gguf:
        tokenizer = Tokenizer.from_metadata(gguf.metadata)
    assert (tokenizer.vocab_size, tokenizer.eos_id, tokenizer.stop_ids) == (320, 318, {316, 318})
    assert tokenizer.decode(tokenizer.encode("the quick café")) == "the quick café"
    assert tokenizer.encode("<|im_start|>", special=True) == [317]


def test_old_files_without_token_types() -> None:
    tokenizer = Tokenizer.from_metadata(small(token_type=None))
    assert set(tokenizer.control_tokens.values()) == {258, 259}


CUTS = {
    "gpt-2": ["Hello", " 12345", " I", "'", "M", "\n\n ", " café", "_", "x", "!?", " ½"],
    "smollm": ["Hello", " ", "1", "2", "3", "4", "5", " I", "'", "M", "\n\n ", " café", "_", "x", "!?", " ", "½"],
    "llama-bpe": ["Hello", " ", "123", "45", " I", "'M", "\n\n", " ", " café", "_x", "!?", " ", "½"],
    "qwen2": ["Hello", " ", "1", "2", "3", "4", "5", " I", "'M", "\n\n", " ", " café", "_x", "!?", " ", "½"],
    "gpt-4o": ["Hello", " ", "123", "45", " I'M", "\n\n", " ", " café", "_x", "!?", " ", "½"],
    "default": ["Hello", " ", "123", "45", " I", "'", "M", "\n\n ", " café", "_", "x", "!?", " ", "½"],
}


@pytest.mark.parametrize("name", CUTS)
def test_cuts(name: str) -> None:
    words = pre_tokenizer(name).build().pre_tokenize_str("Hello 12345 I'M\n\n  café_x!? ½")
    assert [bytes(_BYTE_OF[char] for char in word).decode() for word, _ in words] == CUTS[name]


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_every_named_pre_tokenizer_keeps_all_text(name: str) -> None:
    text = "Über 世界12,345 don't\r\n\tfoo( bar);  ١٢ 'LL e\u0301 。…  \n"
    words = pre_tokenizer(name).build().pre_tokenize_str(text)
    assert bytes(_BYTE_OF[char] for word, _ in words for char in word).decode() == text

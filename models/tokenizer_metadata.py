"""What a GGUF says about its tokenizer, checked and typed.

Owns the meaning of the `tokenizer.ggml.*` keys: vocabulary, kinds of token, merges and the named ids. Does not know the
file reader (it takes the metadata mapping) nor how text is encoded. Pure; runs on the thread that loads a model.

Source: the GGUF specification, github.com/ggml-org/ggml/blob/master/docs/gguf.md, "Tokenizer"
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from models.errors import CorruptFile, UnsupportedArchitecture, shown
from models.pretokenizers import PreTokenizer, pre_tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 1, 2, 3, 4, 5  # values of tokenizer.ggml.token_type

_logger = logging.getLogger(__name__)
_PREFIX = "tokenizer.ggml."
_OTHER_KINDS = {
    "llama": "a SentencePiece tokenizer",
    "bert": "a WordPiece tokenizer",
    "t5": "a Unigram tokenizer",
    "rwkv": "an RWKV tokenizer",
    "none": "no tokenizer",
    "no_vocab": "no tokenizer",
}
# Control tokens that end a turn by their published meaning, for files whose keys name only one of several.
_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>", "<|end_of_text|>", "<end_of_turn>", "<|end|>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """Everything that encoding needs; `tokens` and `token_types` are indexed by id."""

    tokens: Sequence[str]
    token_types: Sequence[int]
    merges: Sequence[tuple[str, str]]  # in order of priority
    pre: PreTokenizer
    bos_id: int | None
    eos_id: int | None
    stop_ids: frozenset[int]
    add_bos: bool


def read_vocabulary(metadata: Mapping[str, object]) -> Vocabulary:
    """Read the `tokenizer.ggml.*` keys of a byte-level BPE model.

    Raises UnsupportedArchitecture for another kind of tokenizer, CorruptFile when keys are absent, have the wrong type
    or contradict each other.
    """
    _require_byte_level_bpe(metadata)
    pre = pre_tokenizer(_string(metadata, "pre", "default"))
    tokens = _strings(metadata, "tokens")
    if not tokens:
        raise _damaged("its vocabulary is empty")
    named = {key: _token_id(metadata, key, len(tokens)) for key in ("bos", "eos", "eot", "eom")}
    types = _types(metadata, len(tokens), {token for token in named.values() if token is not None})
    ends = {named["eos"], named["eot"], named["eom"], *_turn_ends(tokens, types)}
    return Vocabulary(
        tokens=tokens,
        token_types=types,
        merges=[_pair(merge) for merge in _strings(metadata, "merges")],
        pre=pre,
        bos_id=named["bos"],
        eos_id=named["eos"],
        stop_ids=frozenset(token for token in ends if token is not None),
        add_bos=_flag(metadata, "add_bos_token", pre.add_bos) and named["bos"] is not None,
    )


def _require_byte_level_bpe(metadata: Mapping[str, object]) -> None:
    kind = _string(metadata, "model", "none")
    if kind != "gpt2":
        has = _OTHER_KINDS.get(kind, f"a tokenizer named {shown(kind)}")
        raise UnsupportedArchitecture(
            f"This model has {has}; Inglenook reads byte-level BPE so far, as in Llama 3, Qwen or SmolLM."
        )


def _turn_ends(tokens: Sequence[str], types: Sequence[int]) -> set[int]:
    control = {tokens[token]: token for token, kind in enumerate(types) if kind == CONTROL}
    ends = {text: control[text] for text in _TURN_ENDS if text in control}
    if "<|return|>" in control and "<|call|>" in control:
        ends.pop("<|end|>", None)  # harmony: this ends one message of several, not the turn
    return set(ends.values())


def _types(metadata: Mapping[str, object], count: int, named: set[int]) -> list[int]:
    value = metadata.get(_PREFIX + "token_type")
    if value is None:  # old files: what the keys name is control, the rest is text
        return [CONTROL if token in named else NORMAL for token in range(count)]
    types = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(types, list) or not all(isinstance(kind, int) for kind in types):
        raise _damaged("token_type isn't a list of whole numbers")
    if len(types) != count:
        raise _damaged(f"it has {count} tokens but {len(types)} token types")
    return types


def _pair(merge: str) -> tuple[str, str]:
    # The left token is never empty, so a space in front belongs to it.
    space = merge.find(" ", 1)
    if space < 1 or space == len(merge) - 1:
        raise _damaged(f"{shown(merge)} isn't a pair to merge")
    return merge[:space], merge[space + 1 :]


def _token_id(metadata: Mapping[str, object], name: str, count: int) -> int | None:
    key = f"{name}_token_id"
    value = metadata.get(_PREFIX + key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise _damaged(f"{key} isn't a whole number")
    if not 0 <= value < count:
        # Published files carry -1 or an id beyond the vocabulary for "none".
        _logger.warning("%s is %d, outside the vocabulary of %d tokens; ignored", key, value, count)
        return None
    return value


def _string(metadata: Mapping[str, object], key: str, default: str) -> str:
    value = metadata.get(_PREFIX + key, default)
    if not isinstance(value, str):
        raise _damaged(f"{key} isn't text")
    return value


def _strings(metadata: Mapping[str, object], key: str) -> list[str]:
    value = metadata.get(_PREFIX + key)
    if not isinstance(value, list) or not all(map(str.__instancecheck__, value)):
        raise _damaged(f"{key} is absent or not a list of texts")
    return value


def _flag(metadata: Mapping[str, object], key: str, default: bool) -> bool:
    value = metadata.get(_PREFIX + key, default)
    if not isinstance(value, bool):
        raise _damaged(f"{key} isn't true or false")
    return value


def _damaged(what: str) -> CorruptFile:
    return CorruptFile(f"The model's tokenizer is damaged: {what}. Download the model again.")

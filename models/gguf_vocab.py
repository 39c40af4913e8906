"""Whether a GGUF file's vocabulary fits its model: counts, special tokens, merges.

A vocabulary that passes gives every token that the model can produce a text, and every merge its result. Does not
tokenize; models/tokenizer.py does. Called by the thread that opens the model.
"""

import numpy as np

from models.errors import CorruptFile, TensorMismatch, UnsupportedArchitecture, damaged, shown
from models.gguf import GgufFile

_KIND = "gpt2"  # byte-level BPE
_SPECIAL_IDS = ("bos", "eos", "eot", "eom")


def check_vocabulary(gguf: GgufFile, vocab_size: int) -> None:
    """Check the vocabulary against the embedding's `vocab_size` rows.

    Raises CorruptFile, TensorMismatch, or UnsupportedArchitecture for a kind of tokenizer that isn't known here.
    """
    kind = gguf.get_str("tokenizer.ggml.model")
    if kind != _KIND:
        raise UnsupportedArchitecture(
            f"{gguf.path.name} uses the tokenizer {shown(kind)}, which Inglenook can't run yet. "
            f'Choose a model with the tokenizer "{_KIND}", such as Llama 3 or SmolLM2.'
        )
    tokens = gguf.get_strings("tokenizer.ggml.tokens")
    if len(tokens) != vocab_size:
        raise TensorMismatch(
            f"{gguf.path.name} lists {len(tokens):,} tokens, but its embedding has {vocab_size:,} rows. "
            "Get another version of the model."
        )
    for name in ("token_type", "scores"):
        _check_per_token(gguf, f"tokenizer.ggml.{name}", len(tokens))
    for name in _SPECIAL_IDS:
        key = f"tokenizer.ggml.{name}_token_id"
        if key in gguf.metadata and not 0 <= gguf.get_int(key) < len(tokens):
            raise damaged(gguf.path.name, f"its entry {shown(key)} names a token that doesn't exist")
    _check_merges(gguf, tokens)


def _check_per_token(gguf: GgufFile, key: str, num_tokens: int) -> None:
    values = gguf.metadata.get(key)
    if values is None:
        return
    if not isinstance(values, np.ndarray):
        raise damaged(gguf.path.name, f"its entry {shown(key)} is not a list of numbers")
    if len(values) != num_tokens:
        raise damaged(gguf.path.name, f"its entry {shown(key)} is for {len(values):,} tokens of {num_tokens:,}")


def _check_merges(gguf: GgufFile, tokens: list[str]) -> None:
    """A merge is two tokens with a space between; both and their joining must be tokens."""
    known = set(tokens)
    for merge in gguf.get_strings("tokenizer.ggml.merges"):
        space = merge.find(" ", 1)  # a token may begin with a space, never hold one further on
        left, right = merge[:space], merge[space + 1 :]
        if space < 0 or not (left in known and right in known and left + right in known):
            raise _bad_merge(gguf, merge)


def _bad_merge(gguf: GgufFile, merge: str) -> CorruptFile:
    return damaged(gguf.path.name, f"its merge {shown(merge)} uses a token that doesn't exist")

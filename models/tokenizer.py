"""Text to token ids and back, from the vocabulary inside a GGUF.

Owns byte-level BPE encoding, the cut at special tokens and the exact bytes of each token. Does not know GGUF keys
(models/tokenizer_metadata.py does), chat templates, or how streaming holds back incomplete UTF-8. Immutable after
construction; any thread may encode and decode at the same time.

Kinds of token: a *control* token (start of turn, end of turn) never comes out of plain text; a *user-defined* token
(`<think>` in some models) is matched in any text, as llama.cpp does.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

import tokenizers

from models.errors import CorruptFile, shown
from models.tokenizer_metadata import CONTROL, UNKNOWN, UNUSED, USER_DEFINED, Vocabulary, read_vocabulary


def _byte_alphabet() -> dict[str, int]:
    """Character to byte: GPT-2 writes each byte as one printable character (Radford et al. 2019, released encoder)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    moved = {chr(0x100 + position): byte for position, byte in enumerate(others)}
    return {chr(byte): byte for byte in printable} | moved


_BYTE_OF = _byte_alphabet()


class Tokenizer:
    """One model's vocabulary, ready to encode and decode."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Prepare the encoder, some 0.2 s for 150,000 tokens. Raises CorruptFile when merges don't fit the tokens."""
        self._tokens = vocabulary.tokens
        self._types = vocabulary.token_types
        self.vocab_size = len(vocabulary.tokens)
        self.bos_id = vocabulary.bos_id
        self.eos_id = vocabulary.eos_id
        self.stop_ids = vocabulary.stop_ids
        self.add_bos = vocabulary.add_bos
        self.control_tokens: Mapping[str, int] = self._of_types(CONTROL, UNKNOWN)
        user_defined = self._of_types(USER_DEFINED)
        self._special_ids = user_defined | self.control_tokens
        self._user_defined = _any_of(user_defined)
        self._special = _any_of(self._special_ids)
        self._bpe = _byte_pair_encoder(vocabulary, self.control_tokens)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, object]) -> "Tokenizer":
        """Build from a GGUF's metadata; raises UnsupportedArchitecture and CorruptFile as `read_vocabulary` does."""
        return cls(read_vocabulary(metadata))

    def encode(self, text: str, *, special: bool = False, bos: bool | None = None) -> list[int]:
        """Token ids of `text`.

        With `special`, the text of a control token is read as that token; otherwise it is plain text. `bos` puts the
        beginning-of-text token in front; None does as the model says.
        """
        ids: list[int] = []
        if (self.add_bos if bos is None else bos) and self.bos_id is not None:
            ids.append(self.bos_id)
        for piece in self._pieces(text, self._special if special else self._user_defined):
            if isinstance(piece, int):
                ids.append(piece)
            else:
                ids.extend(self._encode_plain(piece))
        return ids

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of the tokens without control tokens; bytes that aren't UTF-8 become U+FFFD."""
        return b"".join(map(self.token_bytes, tokens)).decode("utf-8", errors="replace")

    def token_bytes(self, token: int) -> bytes:
        """Exact bytes that a token stands for, possibly a part of a character.

        Empty for control and unused tokens, and for ids beyond the vocabulary: some models pad their logits.
        """
        if not 0 <= token < self.vocab_size or self._types[token] in (CONTROL, UNKNOWN, UNUSED):
            return b""
        text = self._tokens[token]
        if self._types[token] == USER_DEFINED:
            return text.encode()
        try:
            return bytes([_BYTE_OF[char] for char in text])
        except KeyError:  # not written in the byte alphabet, so the text itself is meant
            return text.encode()

    def token_text(self, token: int) -> str:
        """The vocabulary's own spelling of a token, for display; empty beyond the vocabulary."""
        return self._tokens[token] if 0 <= token < self.vocab_size else ""

    def _pieces(self, text: str, pattern: re.Pattern[str] | None) -> Iterator[int | str]:
        start = 0
        for match in pattern.finditer(text) if pattern else ():
            if match.start() > start:
                yield text[start : match.start()]
            yield self._special_ids[match.group()]
            start = match.end()
        if start < len(text):
            yield text[start:]

    def _encode_plain(self, text: str) -> list[int]:
        # As a batch of one: encode() keeps the GIL, and a megabyte of text would stop every thread for half a second.
        [encoding] = self._bpe.encode_batch_fast([whole_characters(text)], add_special_tokens=False)
        return list(encoding.ids)

    def _of_types(self, *kinds: int) -> dict[str, int]:
        return {self._tokens[i]: i for i, kind in enumerate(self._types) if kind in kinds and self._tokens[i]}


def whole_characters(text: str) -> str:
    """The text with halves of surrogate pairs, which JSON can carry, joined or replaced by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _any_of(texts: Mapping[str, int]) -> re.Pattern[str] | None:
    """Match any of the texts, the longest where several begin at one place."""
    longest_first = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None


def _byte_pair_encoder(vocabulary: Vocabulary, control: Mapping[str, int]) -> tokenizers.Tokenizer:
    # Control tokens stay out of what merging sees, so that no plain text can become one.
    tokens, types = vocabulary.tokens, vocabulary.token_types
    ids = {tokens[token]: token for token, kind in enumerate(types) if kind not in (CONTROL, UNKNOWN)}
    hidden = control.keys() - ids.keys()
    merges = [pair for pair in vocabulary.merges if hidden.isdisjoint((*pair, pair[0] + pair[1]))]
    try:
        bpe = tokenizers.models.BPE(vocab=ids, merges=merges, ignore_merges=vocabulary.pre.ignore_merges)
    except Exception as error:  # the library raises nothing narrower for merges of unknown tokens
        reason = shown(str(error))
        raise CorruptFile(f"The model's tokenizer is damaged: {reason}. Download the model again.") from error
    encoder = tokenizers.Tokenizer(bpe)
    encoder.pre_tokenizer = vocabulary.pre.build()
    return encoder

"""A kv block and its file: safetensors with one tensor, and a checksum over everything that has a meaning.

Owns the format. A file is either exactly what encode() makes or a BadBlock: there is one way to write each header, and
what the header says and what the tensor holds are both under the checksum. Knows no paths. Pure functions, any thread;
the hashing of large buffers leaves the GIL to others.

    8 bytes: length of the header | header: JSON, then spaces | tensor "kv": U8 [pages, page_bytes]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import orjson
from safetensors.numpy import save

from engine.function_table import PAGE_SIZE
from engine.tiers.chain import BLOCK_TOKENS, KEY_BYTES, Key, next_key

FORMAT = "inglenook-kv-1"

HEAD_BYTES = 4096
"""The most that precedes the tensor; so many bytes from a file's start are enough for decode_head()."""

MAX_PAGES = BLOCK_TOKENS // PAGE_SIZE

_LENGTH_BYTES = 8
_CHECKSUM_BYTES = 32


class BadBlock(Exception):
    """The bytes are not a kv block of this model; the message says why."""


class Head(NamedTuple):
    """What a file's header says about its block."""

    parent: Key
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KvBlock:
    """Keys and values of 1 to BLOCK_TOKENS consecutive tokens."""

    parent: Key
    tokens: tuple[int, ...]
    data: bytes
    """[pages, page_bytes], pages = ceil(len(tokens) / PAGE_SIZE); what stands behind the last token has no meaning."""

    @property
    def key(self) -> Key:
        """Derived from the parent and the tokens, so that it cannot be wrong."""
        return next_key(self.parent, self.tokens)


class _Header(NamedTuple):
    head: Head
    checksum: str
    end: int


def num_pages(num_tokens: int) -> int:
    """Pages that so many tokens take."""
    return -(-num_tokens // PAGE_SIZE)


def encode(block: KvBlock, fingerprint: bytes) -> bytes:
    """The block's file. Its data must divide into its pages."""
    pages = num_pages(len(block.tokens))
    assert 1 <= len(block.tokens) <= BLOCK_TOKENS and len(block.parent) == KEY_BYTES, "not a kv block"
    assert block.data and len(block.data) % pages == 0, "the data are not whole pages"
    page_bytes = len(block.data) // pages
    tokens = _join(block.tokens)
    checksum = _checksum(fingerprint, block.parent, tokens, page_bytes, block.data)
    metadata = _metadata(fingerprint, block.parent, tokens, checksum)
    return save({"kv": np.frombuffer(block.data, np.uint8).reshape(pages, page_bytes)}, metadata)


def decode(data: bytes, fingerprint: bytes, page_bytes: int) -> KvBlock:
    """The block in this file. Raises BadBlock, and nothing else, where a single bit is not as it was written."""
    header = _read_header(data, fingerprint, page_bytes)
    parent, tokens = header.head
    body = memoryview(data)[header.end :]
    if len(body) != num_pages(len(tokens)) * page_bytes:
        raise BadBlock(f"it has {len(body)} bytes of pages where {num_pages(len(tokens)) * page_bytes} belong")
    if _checksum(fingerprint, parent, _join(tokens), page_bytes, body) != header.checksum:
        raise BadBlock("its checksum does not match")
    return KvBlock(parent, tokens, bytes(body))


def decode_head(start: bytes, fingerprint: bytes, page_bytes: int) -> Head:
    """What the header says, from a file's first HEAD_BYTES bytes. Raises BadBlock.

    The checksum stays unread; who knows the key can check that it follows from what is returned.
    """
    return _read_header(start, fingerprint, page_bytes).head


def _read_header(data: bytes, fingerprint: bytes, page_bytes: int) -> _Header:
    end = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
    if end > HEAD_BYTES or end > len(data):
        raise BadBlock("its header does not end")
    text = data[_LENGTH_BYTES:end]
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        raise BadBlock("its header is not JSON") from None
    said = found.get("__metadata__") if isinstance(found, dict) else None
    if not isinstance(said, dict):
        raise BadBlock("its header lacks the description")
    if said.get("fingerprint") != fingerprint.hex():
        raise BadBlock("it belongs to another model or setting")
    head = Head(_parse_key(said.get("parent")), _parse_tokens(said.get("tokens")))
    checksum = said.get("checksum")
    if not isinstance(checksum, str):
        raise BadBlock("it has no checksum")
    pages = num_pages(len(head.tokens))
    expected = {
        "__metadata__": _metadata(fingerprint, head.parent, _join(head.tokens), checksum),
        "kv": {"dtype": "U8", "shape": [pages, page_bytes], "data_offsets": [0, pages * page_bytes]},
    }
    # The second comparison refuses what two spellings have in common: repeated names, white space, escapes.
    if found != expected or orjson.dumps(found) != text.rstrip(b" "):
        raise BadBlock("its header is not as it was written")
    return _Header(head, checksum, end)


def _metadata(fingerprint: bytes, parent: Key, tokens: str, checksum: str) -> dict[str, str]:
    return {
        "format": FORMAT,
        "fingerprint": fingerprint.hex(),
        "parent": parent.hex(),
        "tokens": tokens,
        "page_tokens": str(PAGE_SIZE),
        "checksum": checksum,
    }


def _checksum(fingerprint: bytes, parent: Key, tokens: str, page_bytes: int, data: bytes | memoryview) -> str:
    about = orjson.dumps([FORMAT, fingerprint.hex(), parent.hex(), tokens, PAGE_SIZE, page_bytes])
    state = blake2b(about, digest_size=_CHECKSUM_BYTES)
    state.update(data)
    return state.hexdigest()


def _join(tokens: Sequence[int]) -> str:
    return ",".join(map(str, tokens))


def _parse_key(text: object) -> Key:
    if isinstance(text, str) and len(text) == 2 * KEY_BYTES:
        try:
            return bytes.fromhex(text)
        except ValueError:
            pass
    raise BadBlock("its parent is not a key")


def _parse_tokens(text: object) -> tuple[int, ...]:
    parts = text.split(",") if isinstance(text, str) and text.isascii() else []
    well_formed = 1 <= len(parts) <= BLOCK_TOKENS and all(part.isdecimal() and len(part) <= 10 for part in parts)
    tokens = tuple(map(int, parts)) if well_formed else ()
    if not tokens or max(tokens) >= 2**32:
        raise BadBlock("its token ids are unreadable")
    return tokens

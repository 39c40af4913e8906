"""Files of kv blocks: what was written comes back, and anything else is refused without harm."""

from __future__ import annotations

import random
import tracemalloc

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load, save

from engine.tiers.chain import BLOCK_TOKENS, root_key
from engine.tiers.kv_block import HEAD_BYTES, BadBlock, KvBlock, decode, decode_head, encode, num_pages
from tests.engine.tiers.blocks import FINGERPRINT, OTHER, make_block

PAGE_BYTES = 24
BLOCK = make_block(root_key(FINGERPRINT), tuple(range(1000, 1000 + 50)), PAGE_BYTES)
FILE = encode(BLOCK, FINGERPRINT)
END = 8 + int.from_bytes(FILE[:8], "little")
HEADER = orjson.loads(FILE[8:END])
BODY = FILE[END:]


def is_refused(file: bytes) -> bool:
    """Whether the file is refused; otherwise it must be the very same block."""
    try:
        assert decode(file, FINGERPRINT, PAGE_BYTES) == BLOCK
    except BadBlock as reason:
        assert str(reason)
        return True
    return False


def with_header(header: object, body: bytes = BODY) -> bytes:
    text = header if isinstance(header, bytes) else orjson.dumps(header)
    return len(text).to_bytes(8, "little") + text + body


def changed(**metadata: object) -> dict[str, object]:
    return HEADER | {"__metadata__": HEADER["__metadata__"] | metadata}


@st.composite
def blocks(draw: st.DrawFn) -> tuple[KvBlock, int]:
    tokens = tuple(draw(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=BLOCK_TOKENS)))
    page_bytes = draw(st.integers(1, 200))
    size = num_pages(len(tokens)) * page_bytes
    return KvBlock(draw(st.binary(min_size=16, max_size=16)), tokens, draw(st.binary(min_size=size, max_size=size))), (
        page_bytes
    )


@settings(max_examples=60, deadline=None)
@given(case=blocks(), fingerprint=st.binary(min_size=16, max_size=16))
def test_what_was_written_comes_back(case: tuple[KvBlock, int], fingerprint: bytes) -> None:
    block, page_bytes = case
    file = encode(block, fingerprint)
    assert decode(file, fingerprint, page_bytes) == block
    assert decode_head(file[:HEAD_BYTES], fingerprint, page_bytes) == (block.parent, block.tokens)
    assert decode(memoryview(file).tobytes(), fingerprint, page_bytes).key == block.key


def test_it_is_a_safetensors_file() -> None:
    assert load(FILE)["kv"].tobytes() == BLOCK.data
    assert load(FILE)["kv"].shape == (4, PAGE_BYTES)
    assert HEADER["__metadata__"]["tokens"].startswith("1000,1001,")


def test_the_longest_header_fits() -> None:
    block = make_block(b"\xff" * 16, tuple(range(2**32 - BLOCK_TOKENS, 2**32)), 10**6)
    file = encode(block, FINGERPRINT)
    assert decode_head(file[:HEAD_BYTES], FINGERPRINT, 10**6).tokens == block.tokens


def test_each_flipped_bit_is_refused_or_harmless() -> None:
    for bit in range(8 * len(FILE)):
        file = bytearray(FILE)
        file[bit // 8] ^= 1 << bit % 8
        assert is_refused(bytes(file))


def test_each_truncation_is_refused() -> None:
    assert all(is_refused(FILE[:size]) for size in range(len(FILE)))
    for size in range(END):
        with pytest.raises(BadBlock):
            decode_head(FILE[:size], FINGERPRINT, PAGE_BYTES)


@pytest.mark.parametrize("tail", [b"\0", b" ", b"\0" * PAGE_BYTES, FILE])
def test_trailing_bytes_are_refused(tail: bytes) -> None:
    assert is_refused(FILE + tail)


def damage(file: bytes, chance: random.Random) -> bytes:
    """Swap, zero, repeat, drop, or fill with noise some of the bytes."""
    start, size, other = chance.randrange(len(file)), chance.randrange(1, 64), chance.randrange(len(file))
    stop = min(start + size, len(file))
    part = file[start:stop]
    kind = chance.choice(["swap", "zero", "repeat", "drop", "noise"])
    if kind == "swap":
        changed = bytearray(file)
        for index in range(start, stop):
            twin = (other + index - start) % len(file)
            changed[index], changed[twin] = changed[twin], changed[index]
        return bytes(changed)
    new = {"zero": bytes(len(part)), "repeat": part * 2, "drop": b"", "noise": chance.randbytes(len(part))}[kind]
    return file[:start] + new + file[stop:]


@pytest.mark.parametrize("seed", range(20))
def test_damage_is_refused_or_harmless(seed: int) -> None:
    for turn in range(20):
        file = damage(FILE, random.Random(seed * 1000 + turn))
        assert is_refused(file) or file == FILE


@pytest.mark.long
def test_much_damage_is_refused_or_harmless() -> None:
    chance = random.Random(7)
    for _ in range(100_000):
        file = FILE
        for _ in range(chance.randrange(1, 4)):
            file = damage(file or b"\0", chance)
        assert is_refused(file) or file == FILE


def _repeated(name: bytes) -> bytes:
    """The header with one entry twice, of which readers commonly believe the second."""
    text = orjson.dumps(HEADER)
    entry = orjson.dumps({name.decode(): HEADER[name.decode()]})[1:-1]
    return text[:-1] + b"," + entry + b"}"


HEADERS = {
    "no JSON": b"{" * 40,
    "deep": b"[" * 2000 + b"]" * 2000,
    "deep within": orjson.dumps(HEADER)[:-1] + b',"x":' + b"[" * 900 + b"]" * 900 + b"}",
    "not UTF-8": orjson.dumps(HEADER).replace(b"U8", b"\xff8"),
    "a list": [],
    "a number": 7,
    "null": None,
    "empty": {},
    "no metadata": {"kv": HEADER["kv"]},
    "metadata of another kind": HEADER | {"__metadata__": [1]},
    "no tensor": {"__metadata__": HEADER["__metadata__"]},
    "another tensor too": HEADER | {"more": HEADER["kv"]},
    "metadata twice": _repeated(b"__metadata__"),
    "tensor twice": _repeated(b"kv"),
    "dtype": HEADER | {"kv": HEADER["kv"] | {"dtype": "I8"}},
    "shape": HEADER | {"kv": HEADER["kv"] | {"shape": [2, 2 * PAGE_BYTES]}},
    "flat shape": HEADER | {"kv": HEADER["kv"] | {"shape": [4 * PAGE_BYTES]}},
    "huge shape": HEADER | {"kv": HEADER["kv"] | {"shape": [2**62, 2**62]}},
    "negative shape": HEADER | {"kv": HEADER["kv"] | {"shape": [-4, -PAGE_BYTES]}},
    "no number": orjson.dumps(HEADER).replace(b'"shape":[4,', b'"shape":[NaN,'),
    "larger than any number": orjson.dumps(HEADER).replace(b'"shape":[4,', b'"shape":[' + b"9" * 400 + b","),
    "infinite": orjson.dumps(HEADER).replace(b'"shape":[4,', b'"shape":[1e999,'),
    "offsets": HEADER | {"kv": HEADER["kv"] | {"data_offsets": [8, 8 + len(BODY)]}},
    "offsets past the end": HEADER | {"kv": HEADER["kv"] | {"data_offsets": [0, 2**63]}},
    "format": changed(format="inglenook-kv-2"),
    "fingerprint": changed(fingerprint=OTHER.hex()),
    "no fingerprint": changed(fingerprint=None),
    "parent": changed(parent="00" * 16),
    "short parent": changed(parent="00"),
    "spaced parent": changed(parent=BLOCK.parent.hex()[:16] + " " * 16),
    "foreign parent": changed(parent="é" * 32),
    "tokens": changed(tokens="1,2,3"),
    "no tokens": changed(tokens=""),
    "too many tokens": changed(tokens=",".join(["1"] * 65)),
    "tokens that are numbers": changed(tokens=[1, 2]),
    "leading zero": changed(tokens=HEADER["__metadata__"]["tokens"].replace("1000", "01000")),
    "underscore": changed(tokens=HEADER["__metadata__"]["tokens"].replace("1000", "1_000")),
    "sign": changed(tokens=HEADER["__metadata__"]["tokens"].replace("1000", "-1000")),
    "digits of another script": changed(tokens="١,٢"),
    "a token of 33 bits": changed(tokens=HEADER["__metadata__"]["tokens"].replace("1000", str(2**32))),
    "long token": changed(tokens="9" * 3000),
    "page_tokens": changed(page_tokens="32"),
    "checksum": changed(checksum="00" * 32),
    "no checksum": changed(checksum=None),
    "upper case": changed(checksum=HEADER["__metadata__"]["checksum"].upper()),
    "more metadata": changed(more="x"),
    "escaped": orjson.dumps(HEADER).replace(b'"kv"', b'"\\u006bv"'),
    "white space": orjson.dumps(HEADER).replace(b":", b": "),
    "line end": orjson.dumps(HEADER) + b"\n",
}


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS.keys())
def test_a_header_that_was_never_written_is_refused(header: object) -> None:
    assert is_refused(with_header(header))


@pytest.mark.parametrize("length", [0, 1, END - 9, END - 7, HEAD_BYTES, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1])
def test_a_length_that_lies_is_refused(length: int) -> None:
    assert is_refused(length.to_bytes(8, "little") + FILE[8:])


@pytest.mark.parametrize("page_bytes", [0, 1, PAGE_BYTES - 1, PAGE_BYTES + 1, 2 * PAGE_BYTES])
def test_pages_of_another_size_are_refused(page_bytes: int) -> None:
    with pytest.raises(BadBlock):
        decode(FILE, FINGERPRINT, page_bytes)


def test_another_model_is_refused() -> None:
    with pytest.raises(BadBlock, match="another model"):
        decode(FILE, OTHER, PAGE_BYTES)


def test_a_foreign_safetensors_file_is_refused() -> None:
    assert is_refused(save({"kv": np.zeros((4, PAGE_BYTES), np.uint8)}))
    assert is_refused(save({}))


@settings(max_examples=200, deadline=None)
@given(file=st.binary(max_size=300))
def test_noise_is_refused(file: bytes) -> None:
    assert is_refused(file)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


@settings(max_examples=100, deadline=None)
@given(
    value=JSON, place=st.sampled_from(["__metadata__", "kv", "tokens", "parent", "fingerprint", "checksum", "shape"])
)
def test_any_value_in_any_place_is_refused(value: object, place: str) -> None:
    if place in HEADER:
        header = HEADER | {place: value}
    elif place == "shape":
        header = HEADER | {"kv": HEADER["kv"] | {place: value}}
    else:
        header = changed(**{place: value})
    assert is_refused(with_header(header))


def test_refusing_takes_no_more_memory_than_the_file() -> None:
    file = with_header(HEADER | {"kv": HEADER["kv"] | {"shape": [2**40, 2**20]}}, bytes(2**20))
    files = [file, *(length.to_bytes(8, "little") + file[8:] for length in (2**63, 2**20))]
    tracemalloc.start()
    try:
        assert all(is_refused(file) for file in files)
        assert tracemalloc.get_traced_memory()[1] < 2**17
    finally:
        tracemalloc.stop()

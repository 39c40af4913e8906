"""The GGUF reader on sound files, hand-made headers and things that are not GGUF at all."""

import json
import os
import struct
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models.architectures import describe
from models.errors import CorruptFile, ModelError, ModelNotFound, UnsupportedQuantization
from models.gguf import open_gguf
from models.gguf_values import MAX_STRINGS

DATA = Path(__file__).parents[1] / "data"
CONTROL = DATA / "gguf_broken" / "valid_control.gguf"
U32, F32, BOOL, STRING, ARRAY, U64 = 4, 6, 7, 8, 9, 10


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def header(entries: Sequence[bytes], tensors: Sequence[bytes] = (), *, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(entries)) + b"".join((*entries, *tensors))


def entry(key: str, kind: int, payload: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + payload


def tensor(name: str, dims: tuple[int, ...], kind: int, start: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, start)


def save(folder: Path, data: bytes, name: str = "made.gguf") -> Path:
    (folder / name).write_bytes(data)
    return folder / name


def test_every_kind_of_value(tmp_path: Path) -> None:
    numbers = struct.pack("<IQ", F32, 3) + np.array([1, 2, 3.5], "<f4").tobytes()
    words = struct.pack("<IQ", STRING, 3) + text("one") + text("") + text("zwölf")
    entries = [
        entry("a.int", 11, struct.pack("<q", -(2**40))),
        entry("a.small", 1, b"\xff"),
        entry("a.float", 12, struct.pack("<d", 0.1)),
        entry("a.yes", BOOL, b"\x01"),
        entry("a.text", STRING, text("naïve")),
        entry("a.bytes", STRING, text(b"\xff!")),
        entry("a.numbers", ARRAY, numbers),
        entry("a.flags", ARRAY, struct.pack("<IQ", BOOL, 2) + b"\x00\x01"),
        entry("a.words", ARRAY, words),
        entry("a.nothing", ARRAY, struct.pack("<IQ", STRING, 0)),
    ]
    with open_gguf(save(tmp_path, header(entries))) as gguf:
        assert gguf.get_int("a.int") == -(2**40)
        assert gguf.get_int("a.small") == -1
        assert gguf.get_float("a.float") == 0.1
        assert gguf.get_bool("a.yes") is True
        assert gguf.get_str("a.text") == "naïve"
        assert gguf.get_str("a.bytes") == "\ufffd!"
        assert gguf.get_strings("a.words") == ["one", "", "zwölf"]
        assert gguf.get_strings("a.nothing") == []
        np.testing.assert_array_equal(gguf.metadata["a.flags"], np.array([False, True]))
        assert gguf.get_int("absent", 7) == 7
        assert len(gguf.metadata) == 10
        assert list(gguf.metadata)[:2] == ["a.int", "a.small"]
    np.testing.assert_array_equal(gguf.metadata["a.numbers"], np.array([1, 2, 3.5], np.float32))


@pytest.mark.parametrize(
    "getter, key",
    [
        ("get_int", "llama.attention.layer_norm_rms_epsilon"),
        ("get_float", "general.architecture"),
        ("get_str", "llama.block_count"),
        ("get_bool", "llama.block_count"),
        ("get_strings", "general.architecture"),
        ("get_int", "no.such.key"),
    ],
)
def test_getters_name_the_key(getter: str, key: str) -> None:
    with open_gguf(CONTROL) as gguf, pytest.raises(CorruptFile, match=key):
        getattr(gguf, getter)(key)


def test_version_2_reads_as_version_3(tmp_path: Path) -> None:
    data = bytearray(CONTROL.read_bytes())
    data[4] = 2
    with open_gguf(save(tmp_path, bytes(data))) as second, open_gguf(CONTROL) as third:
        assert list(second.tensors) == list(third.tensors)
        describe(second)


def test_tensors_are_views_of_the_map() -> None:
    with open_gguf(CONTROL) as gguf:
        embed = gguf.tensors["token_embd.weight"]
        assert embed.shape == (40, 8)
        assert embed.block_type.name == "F32"
        assert embed.data.dtype == np.uint8
        assert embed.data.size == 40 * 8 * 4
        assert not embed.data.flags.writeable
        assert not embed.data.flags.owndata


def test_close_unmaps_the_file() -> None:
    gguf = open_gguf(CONTROL)
    (mapped,) = gguf._maps
    gguf.close()
    assert mapped.closed


def test_a_view_outlives_the_file(tmp_path: Path) -> None:
    gguf = open_gguf(save(tmp_path, CONTROL.read_bytes()))
    view = gguf.tensors["output_norm.weight"].data
    before = view.tobytes()
    gguf.close()
    gguf.close()
    assert gguf.tensors == {}
    assert view.tobytes() == before
    assert gguf.get_strings("tokenizer.ggml.tokens")


def test_split_parts_become_one_model() -> None:
    folder = DATA / "gguf_broken" / "split_ok"
    with open_gguf(folder / "tiny-00001-of-00002.gguf") as gguf, open_gguf(CONTROL) as whole:
        assert gguf.tensors.keys() == whole.tensors.keys()
        for name, part in gguf.tensors.items():
            np.testing.assert_array_equal(part.data, whole.tensors[name].data)
    with open_gguf(folder / "tiny-00002-of-00002.gguf") as gguf:
        assert gguf.path.name == "tiny-00001-of-00002.gguf"
        describe(gguf)


def test_a_renamed_first_part_says_its_name(tmp_path: Path) -> None:
    part = DATA / "gguf_broken" / "split_ok" / "tiny-00001-of-00002.gguf"
    with pytest.raises(CorruptFile, match=r"-00001-of-00002\.gguf"):
        open_gguf(save(tmp_path, part.read_bytes()))


@pytest.mark.parametrize(
    "data, says",
    [
        (b"", "empty"),
        (b"<!DOCTYPE html><html>404", "web page"),
        (b"\n <HTML>", "web page"),
        (b'{"error":"not found"}', "JSON"),
        (b"PK\x03\x04" + b"\0" * 40, "zip"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "Git LFS"),
        (struct.pack("<Q", 10) + b'{"a": {}}  ', "safetensors"),
        (b"\0" * 4096, "zeros"),
        (b"tjgg\x01\0\0\0", "before GGUF"),
        (b"GGUF\0\0\0\x03" + b"\0" * 16, "big-endian"),
        (header([], version=1), "version 1"),
        (b"\x1b[31mhello", "not a GGUF"),
    ],
)
def test_what_it_is_instead(tmp_path: Path, data: bytes, says: str) -> None:
    with pytest.raises(CorruptFile, match=says) as caught:
        open_gguf(save(tmp_path, data))
    assert str(caught.value).startswith("made.gguf ")
    assert str(caught.value).isprintable()


def test_absent_and_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="no file"):
        open_gguf(tmp_path / "nothing.gguf")
    with pytest.raises(ModelNotFound, match="not a file"):
        open_gguf(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes with names are POSIX")
def test_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(ModelNotFound):
        open_gguf(tmp_path / "pipe.gguf")


def test_a_type_without_kernels_is_named(tmp_path: Path) -> None:
    data = header([], [tensor("blk.0.attn_q.weight", (256, 2), 12, 0)]) + b"\0" * 512
    with pytest.raises(UnsupportedQuantization, match=r'"blk\.0\.attn_q\.weight" as Q4_K.*Q8_0'):
        open_gguf(save(tmp_path, data))


def test_rows_must_be_whole_blocks(tmp_path: Path) -> None:
    with pytest.raises(CorruptFile, match="rows of 40, which Q4_1 can't store"):
        open_gguf(save(tmp_path, header([], [tensor("w", (40, 2), 3, 0)]) + b"\0" * 512))


def test_names_from_the_file_stay_on_one_line(tmp_path: Path) -> None:
    data = header([], [tensor("a\nb\x1b[2J", (8,), 99, 0)])
    with pytest.raises(UnsupportedQuantization) as caught:
        open_gguf(save(tmp_path, data))
    assert str(caught.value).isprintable()


def test_a_million_strings_too_many_cost_nothing(tmp_path: Path) -> None:
    payload = struct.pack("<IQ", STRING, MAX_STRINGS + 1) + b"\0" * 8 * (MAX_STRINGS + 1)
    path = save(tmp_path, header([entry("evil", ARRAY, payload)]))
    began = time.perf_counter()
    with pytest.raises(CorruptFile, match="evil"):
        open_gguf(path)
    assert time.perf_counter() - began < 0.5


def test_a_whole_vocabulary_opens_quickly(tmp_path: Path) -> None:
    words = [f"word{number}" for number in range(49152)]
    payload = struct.pack("<IQ", STRING, len(words)) + b"".join(map(text, words))
    path = save(tmp_path, header([entry("words", ARRAY, payload)]))
    began = time.perf_counter()
    with open_gguf(path) as gguf:
        assert gguf.get_strings("words") == words
    assert time.perf_counter() - began < 1  # 25 ms measured; room for a busy machine


# Damage anywhere in a sound file


def damage() -> st.SearchStrategy[tuple[str, int, int]]:
    size = CONTROL.stat().st_size
    header_end = 2100  # most damage goes where the reader looks
    places = st.one_of(st.integers(0, header_end), st.integers(0, size - 1))
    return st.tuples(st.sampled_from(["flip", "byte", "zero", "ones", "cut"]), places, st.integers(0, 255))


def damaged_copy(harm: list[tuple[str, int, int]]) -> bytes:
    data = bytearray(CONTROL.read_bytes())
    for how, place, amount in harm:
        run = slice(place, min(place + amount % 16 + 1, len(data)))
        if how == "cut":
            del data[place:]
        elif how == "zero":
            data[run] = bytes(run.stop - run.start) if run.stop > run.start else b""
        elif how == "ones":
            data[run] = b"\xff" * max(run.stop - run.start, 0)
        elif place < len(data):
            data[place] = data[place] ^ (1 << amount % 8) if how == "flip" else amount
    return bytes(data)


def loads_or_is_refused(path: Path) -> None:
    try:
        with open_gguf(path) as gguf:
            describe(gguf)
    except ModelError as error:
        assert str(error).isprintable()
        assert len(str(error)) < 600


FUZZ = settings(max_examples=50, deadline=1000, suppress_health_check=[HealthCheck.function_scoped_fixture])


@FUZZ
@given(harm=st.lists(damage(), min_size=1, max_size=3))
def test_damage_is_refused_or_harmless(tmp_path: Path, harm: list[tuple[str, int, int]]) -> None:
    loads_or_is_refused(save(tmp_path, damaged_copy(harm)))


@pytest.mark.long
@settings(FUZZ, max_examples=20000)
@given(harm=st.lists(damage(), min_size=1, max_size=3))
def test_much_damage_is_refused_or_harmless(tmp_path: Path, harm: list[tuple[str, int, int]]) -> None:
    loads_or_is_refused(save(tmp_path, damaged_copy(harm)))


@pytest.mark.long
def test_every_cut_and_every_byte(tmp_path: Path) -> None:
    """Each length of the header, and each of its bytes set to the values that upset lengths and signs."""
    data = CONTROL.read_bytes()
    for place in range(2100):
        loads_or_is_refused(save(tmp_path, data[:place]))
        for value in (0, 1, 127, 128, 255):
            loads_or_is_refused(save(tmp_path, data[:place] + bytes([value]) + data[place + 1 :]))


def test_index_lists_every_file() -> None:
    folder = DATA / "gguf_broken"
    listed = json.loads((folder / "index.json").read_text())
    for name in listed:
        assert (folder / name).exists()

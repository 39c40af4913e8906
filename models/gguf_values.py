"""GGUF metadata: keys and values, read with every count and length checked before it is used.

Arrays of numbers are decoded by numpy; arrays of strings are walked at once, to check them and find their end, and
decoded when first asked for, so that opening a model doesn't pay for its vocabulary. Values are copied out of the map
and outlive it. Does not know what any key means. Reading belongs to the thread that opens the model; afterwards any
thread may read a key.

Source: the GGUF specification, github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from models.errors import damaged, shown

NumberArray: TypeAlias = npt.NDArray[np.generic]
MetadataValue: TypeAlias = int | float | bool | str | list[str] | NumberArray

# Real headers stay under 40 MiB, 2,000 tensors, 100 keys and 800,000 strings. Beyond these limits a file is hostile.
MAX_HEADER_BYTES = 128 << 20
MAX_ENTRIES = 1 << 16
MAX_STRINGS = 1 << 21

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_BOOL, _STRING, _ARRAY = 7, 8, 9
# Value types by number; struct's and numpy's letters agree once the byte order stands before them.
_NUMBERS = dict(enumerate(("<B", "<b", "<H", "<h", "<I", "<i", "<f", "<B"))) | {10: "<Q", 11: "<q", 12: "<d"}
_MIN_ENTRY_BYTES = 8 + 4 + 1
_MAX_KEY_BYTES = 65535


class Cursor:
    """A position in the mapped file. Nothing is read before `claim` has found room for it."""

    __slots__ = ("_strings_left", "data", "end", "file_name", "position")

    def __init__(self, data: mmap.mmap, file_name: str, position: int) -> None:
        self.data = data
        self.file_name = file_name
        self.position = position
        self.end = min(len(data), MAX_HEADER_BYTES)
        self._strings_left = MAX_STRINGS

    def claim(self, num_bytes: int, what: str) -> int:
        """Step over `num_bytes`; their start. Raises CorruptFile where the file doesn't hold that many."""
        start = self.position
        if num_bytes > self.end - start:
            left = len(self.data) - start
            if num_bytes <= left:
                raise damaged(self.file_name, f"its description is longer than {MAX_HEADER_BYTES >> 20} MiB")
            raise damaged(self.file_name, f"{what} needs {num_bytes:,} bytes and the file has {left:,} left")
        self.position = start + num_bytes
        return start

    def u32(self, what: str) -> int:
        value: int = _U32.unpack_from(self.data, self.claim(4, what))[0]
        return value

    def u64(self, what: str) -> int:
        value: int = _U64.unpack_from(self.data, self.claim(8, what))[0]
        return value

    def string(self, what: str, max_bytes: int = MAX_HEADER_BYTES) -> str:
        """A length and as many bytes of UTF-8; bytes that aren't become replacement characters."""
        length = self.u64(what)
        if length > max_bytes:
            raise damaged(self.file_name, f"it says that {what} has {length:,} bytes")
        start = self.claim(length, what)
        return self.data[start : start + length].decode("utf-8", "replace")

    def strings(self, count: int, what: str) -> "StringBlob":
        """Step over `count` strings, checking each length."""
        if count > self._strings_left:
            raise damaged(self.file_name, f"it says that {what} has {count:,} strings")
        self._strings_left -= count
        data, position, last = self.data, self.position, self.end - 8
        start = position
        for _ in range(count):
            if position > last:
                raise damaged(self.file_name, f"it ends inside {what}")
            position += 8 + _U64.unpack_from(data, position)[0]
        if position > self.end:
            raise damaged(self.file_name, f"it ends inside {what}")
        self.position = position
        return StringBlob(data[start:position], count)


@dataclass(frozen=True, slots=True)
class StringBlob:
    """An array of strings as the file holds it; its lengths are known to be sound."""

    data: bytes
    count: int

    def decode(self) -> list[str]:
        data, position = self.data, 0
        texts = []
        for _ in range(self.count):
            start = position + 8
            position = start + _U64.unpack_from(data, position)[0]
            texts.append(data[start:position].decode("utf-8", "replace"))
        return texts


class Metadata(Mapping[str, MetadataValue]):
    """What the file says of itself, in file order."""

    def __init__(self, entries: dict[str, MetadataValue | StringBlob]) -> None:
        self._entries = entries

    def __getitem__(self, key: str) -> MetadataValue:
        value = self._entries[key]
        if isinstance(value, StringBlob):
            value = self._entries[key] = value.decode()
        return value

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def read_metadata(cursor: Cursor, num_entries: int) -> Metadata:
    """Read all entries, leaving the cursor behind them. Raises CorruptFile."""
    if num_entries > min(MAX_ENTRIES, (cursor.end - cursor.position) // _MIN_ENTRY_BYTES):
        raise damaged(cursor.file_name, f"it says that it has {num_entries:,} entries of metadata")
    entries: dict[str, MetadataValue | StringBlob] = {}
    for _ in range(num_entries):
        key = cursor.string("the name of an entry", _MAX_KEY_BYTES)
        if not key:
            raise damaged(cursor.file_name, "an entry of its metadata has no name")
        if key in entries:
            raise damaged(cursor.file_name, f"its metadata has {shown(key)} twice")
        entries[key] = _read_value(cursor, key)
    return Metadata(entries)


def _read_value(cursor: Cursor, key: str) -> MetadataValue | StringBlob:
    kind = cursor.u32(shown(key))
    if kind == _STRING:
        return cursor.string(shown(key))
    if kind == _ARRAY:
        return _read_array(cursor, key)
    if kind not in _NUMBERS:
        raise damaged(cursor.file_name, f"its entry {shown(key)} has the unknown type {kind}")
    layout = struct.Struct(_NUMBERS[kind])
    value: int | float = layout.unpack_from(cursor.data, cursor.claim(layout.size, shown(key)))[0]
    return bool(value) if kind == _BOOL else value


def _read_array(cursor: Cursor, key: str) -> NumberArray | StringBlob:
    what = f"the list {shown(key)}"
    kind, count = cursor.u32(what), cursor.u64(what)
    if kind == _STRING:
        return cursor.strings(count, what)
    if kind == _ARRAY:
        raise damaged(cursor.file_name, f"its entry {shown(key)} is a list of lists, which no model uses")
    if kind not in _NUMBERS:
        raise damaged(cursor.file_name, f"its entry {shown(key)} is a list of the unknown type {kind}")
    dtype = np.dtype(_NUMBERS[kind])
    start = cursor.claim(count * dtype.itemsize, what)  # a Python int: the product can't wrap
    numbers = np.frombuffer(cursor.data, dtype, count, start).copy()
    return numbers.astype(np.bool_) if kind == _BOOL else numbers

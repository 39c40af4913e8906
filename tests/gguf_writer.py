"""A GGUF file written for a test: metadata and tensors whose blocks the test makes itself."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from models.blocks import BlockType

ALIGNMENT = 32
_I32, _U32, _F32, _BOOL, _STRING, _ARRAY = 5, 4, 6, 7, 8, 9
Value = bool | int | float | str | Sequence[str] | npt.NDArray[np.int32]


@dataclass(frozen=True)
class WrittenTensor:
    """`shape` slowest dimension first; `blocks` uint8 [rows, bytes of a row]."""

    block_type: BlockType
    shape: tuple[int, ...]
    blocks: npt.NDArray[np.uint8]


def write_gguf(path: Path, metadata: Mapping[str, Value], tensors: Mapping[str, WrittenTensor]) -> Path:
    """Version 3, little-endian; whole numbers are u32, others f32, arrays i32 or strings."""
    head = bytearray(struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata)))
    for key, value in metadata.items():
        head += _text(key) + _value(value)
    offset = 0
    for name, tensor in tensors.items():
        dims = tuple(reversed(tensor.shape))
        head += _text(name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
        head += struct.pack("<IQ", tensor.block_type.ggml_id, offset)
        offset += -(-tensor.blocks.nbytes // ALIGNMENT) * ALIGNMENT
    with path.open("wb") as file:
        file.write(_padded(bytes(head)))
        for tensor in tensors.values():
            file.write(_padded(tensor.blocks.tobytes()))
    return path


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Value) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<IB", _BOOL, value)
    if isinstance(value, int):
        return struct.pack("<II", _U32, value)
    if isinstance(value, float):
        return struct.pack("<If", _F32, value)
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _text(value)
    if isinstance(value, np.ndarray):
        return struct.pack("<IIQ", _ARRAY, _I32, value.size) + value.astype("<i4").tobytes()
    return struct.pack("<IIQ", _ARRAY, _STRING, len(value)) + b"".join(map(_text, value))


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % ALIGNMENT)

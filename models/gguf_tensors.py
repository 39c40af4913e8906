"""The table of tensors in a GGUF file: names, types and shapes, and where their bytes lie in the map.

Checks that every tensor lies inside the file, aligned, and shares no byte with another. Does not know which tensors a
model needs, and never reads the weights themselves. Called by the thread that opens the model; the views may be read
by any thread while the file stays open.
"""

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from models.blocks import BLOCK_TYPES, BlockType
from models.errors import UnsupportedQuantization, damaged, shown
from models.gguf_values import Cursor, Metadata

MAX_TENSORS = 1 << 16
_MIN_INFO_BYTES = 8 + 1 + 4 + 8 + 4 + 8
_MAX_NAME_BYTES = 63
_MAX_DIMS = 4
_DEFAULT_ALIGNMENT = 32

# Only for naming what can't be run.
_OTHER_TYPES = {
    4: "Q4_2",
    5: "Q4_3",
    6: "Q5_0",
    7: "Q5_1",
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: `shape` slowest dimension first, `data` its bytes as a read-only view of the mapped file."""

    name: str
    block_type: BlockType
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class _Placed:
    name: str
    block_type: BlockType
    shape: tuple[int, ...]
    start: int
    num_bytes: int


def read_tensors(cursor: Cursor, num_tensors: int, metadata: Metadata) -> dict[str, TensorInfo]:
    """Read the table at the cursor and place every tensor. Raises CorruptFile and UnsupportedQuantization."""
    alignment = _alignment(metadata, cursor.file_name)
    if num_tensors > min(MAX_TENSORS, (cursor.end - cursor.position) // _MIN_INFO_BYTES):
        raise damaged(cursor.file_name, f"it says that it has {num_tensors:,} tensors")
    placed: dict[str, _Placed] = {}
    for _ in range(num_tensors):
        info = _read_info(cursor, alignment)
        if info.name in placed:
            raise damaged(cursor.file_name, f"it has the tensor {shown(info.name)} twice")
        placed[info.name] = info
    if not placed:
        return {}  # the first part of a split model may hold nothing but metadata
    data_start = -(-cursor.position // alignment) * alignment
    _check_extents(list(placed.values()), len(cursor.data) - data_start, cursor.file_name)
    mapped = np.frombuffer(cursor.data, np.uint8)
    return {
        info.name: TensorInfo(info.name, info.block_type, info.shape, mapped[begin : begin + info.num_bytes])
        for info in placed.values()
        for begin in (data_start + info.start,)
    }


def _alignment(metadata: Metadata, file_name: str) -> int:
    value = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0 or value & (value - 1):
        raise damaged(file_name, 'its entry "general.alignment" is not a power of two')
    return value


def _read_info(cursor: Cursor, alignment: int) -> _Placed:
    name = cursor.string("the name of a tensor", _MAX_NAME_BYTES)
    if not name:
        raise damaged(cursor.file_name, "one of its tensors has no name")
    what = f"the tensor {shown(name)}"
    num_dims = cursor.u32(what)
    if not 1 <= num_dims <= _MAX_DIMS:
        raise damaged(cursor.file_name, f"{what} has {num_dims:,} dimensions")
    dims = [cursor.u64(what) for _ in range(num_dims)]  # fastest first, at most 4
    block_type = _block_type(cursor.u32(what), what, cursor.file_name)
    start = cursor.u64(what)
    if min(dims) < 1:
        raise damaged(cursor.file_name, f"{what} has a dimension of 0")
    if dims[0] % block_type.block_elements:
        raise damaged(cursor.file_name, f"{what} has rows of {dims[0]:,}, which {block_type.name} can't store")
    if start % alignment:
        raise damaged(cursor.file_name, f"{what} starts at {start:,}, which is not a multiple of {alignment:,}")
    num_bytes = block_type.row_bytes(dims[0]) * math.prod(dims[1:])  # Python ints: no product wraps
    return _Placed(name, block_type, tuple(reversed(dims)), start, num_bytes)


def _block_type(type_id: int, what: str, file_name: str) -> BlockType:
    if type_id in BLOCK_TYPES:
        return BLOCK_TYPES[type_id]
    names = [block.name for block in BLOCK_TYPES.values()]
    runs = f"It runs {', '.join(names[:-1])} and {names[-1]}; get the model as one of these."
    kind = _OTHER_TYPES.get(type_id, f"the unknown type {type_id}")
    raise UnsupportedQuantization(f"{file_name} has {what} as {kind}, which Inglenook can't run yet. {runs}")


def _check_extents(placed: list[_Placed], data_bytes: int, file_name: str) -> None:
    for info in placed:
        if info.start + info.num_bytes > data_bytes:
            missing = info.start + info.num_bytes - max(data_bytes, 0)
            unit = "byte" if missing == 1 else "bytes"
            raise damaged(file_name, f"the tensor {shown(info.name)} runs {missing:,} {unit} past the end of the file")
    for first, second in pairwise(sorted(placed, key=lambda info: info.start)):
        if first.start + first.num_bytes > second.start:
            raise damaged(file_name, f"the tensors {shown(first.name)} and {shown(second.name)} share bytes")

"""Opening a GGUF model: one file or a set of split files, mapped and never read whole.

Owns the maps and joins the parts; gguf_header, gguf_values and gguf_tensors read one part. Treats every byte as
hostile: a file is either opened or refused with a ModelError, at a cost bounded by its description's size. Does not
know architectures. Opening and closing belong to the thread that loads the model.
"""

import mmap
import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from models.errors import CorruptFile, ModelNotFound, UnsupportedQuantization, damaged, shown
from models.gguf_header import HEADER_BYTES, check_header
from models.gguf_tensors import TensorInfo, read_tensors
from models.gguf_values import Cursor, MetadataValue, read_metadata

__all__ = ["GgufFile", "MetadataValue", "TensorInfo", "open_gguf"]

_SPLIT_NAME = re.compile(r"(?P<stem>.+)-(?P<part>\d{5})-of-(?P<parts>\d{5})\.gguf", re.DOTALL)


class GgufFile:
    """An open model file; the map goes with `close()`, or with the last tensor view that someone still holds."""

    def __init__(
        self,
        path: Path,
        metadata: Mapping[str, MetadataValue],
        tensors: Mapping[str, TensorInfo],
        maps: tuple[mmap.mmap, ...],
    ) -> None:
        self.path = path
        self.metadata = metadata
        self.tensors = tensors
        self._maps = maps

    def close(self) -> None:
        """Forget the tensors and release the map. Metadata stays readable."""
        self.tensors = {}
        maps, self._maps = self._maps, ()
        for mapped in maps:
            _release(mapped)

    def __enter__(self) -> "GgufFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def get_int(self, key: str, default: int | None = None) -> int:
        """The integer at `key`; without a default the key must be there. Raises CorruptFile, as all getters do."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong_kind(key, "a whole number")
        return value

    def get_float(self, key: str, default: float | None = None) -> float:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong_kind(key, "a number")
        return float(value)

    def get_bool(self, key: str, default: bool | None = None) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self._wrong_kind(key, "yes or no")
        return value

    def get_str(self, key: str, default: str | None = None) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self._wrong_kind(key, "a text")
        return value

    def get_strings(self, key: str, default: list[str] | None = None) -> list[str]:
        value = self._get(key, default)
        if not isinstance(value, list):
            raise self._wrong_kind(key, "a list of texts")
        return value

    def _get(self, key: str, default: MetadataValue | None) -> MetadataValue:
        value = self.metadata.get(key, default)
        if value is None:
            raise damaged(self.path.name, f"its metadata has no {shown(key)}")
        return value

    def _wrong_kind(self, key: str, kind: str) -> CorruptFile:
        return damaged(self.path.name, f"its entry {shown(key)} is not {kind}")


def open_gguf(path: Path) -> GgufFile:
    """Open the model at `path`; any part of a split model opens the whole.

    Raises ModelNotFound where a file is absent, CorruptFile where one is unsound, UnsupportedQuantization where a
    tensor's block type isn't computed here.
    """
    path = Path(path)
    split = _SPLIT_NAME.fullmatch(path.name)
    if split and int(split["part"]) > 1:
        path = path.with_name(f"{split['stem']}-00001-of-{split['parts']}.gguf")
        if not path.exists():
            raise ModelNotFound(f"{path.name}, the first part of this model, is missing. Put it beside {split[0]}.")
    first = _open_part(path)
    num_parts = first.get_int("split.count", 0)
    if num_parts <= 1:
        return first
    return _join(first, num_parts)


def _join(first: GgufFile, num_parts: int) -> GgufFile:
    """Add the other parts' tensors to the first part's. Closes all of them where one can't be had."""
    parts = [first]
    try:
        _check_part(first, 0, num_parts)
        split = _SPLIT_NAME.fullmatch(first.path.name)
        if split is None or int(split["parts"]) != num_parts:
            ending = f"-00001-of-{num_parts:05d}.gguf"
            raise CorruptFile(
                f"{first.path.name} is the first of {num_parts:,} parts, so its name must end in {ending}. "
                "Give the parts their first names back."
            )
        for index in range(1, num_parts):
            path = first.path.with_name(f"{split['stem']}-{index + 1:05d}-of-{num_parts:05d}.gguf")
            if not path.exists():
                raise ModelNotFound(f"{path.name}, part {index + 1} of this model, is missing. Download it as well.")
            parts.append(_open_part(path))
            _check_part(parts[-1], index, num_parts)
        tensors = _merged(parts)
    except Exception:  # whatever went wrong, the maps must not outlive it
        for part in parts:
            part.close()
        raise
    return GgufFile(first.path, first.metadata, tensors, tuple(mapped for part in parts for mapped in part._maps))


def _check_part(part: GgufFile, index: int, num_parts: int) -> None:
    number, count = part.get_int("split.no"), part.get_int("split.count")
    if (number, count) != (index, num_parts):
        raise damaged(
            part.path.name,
            f"it should be part {index + 1:,} of {num_parts:,} but says that it is {number + 1:,} of {count:,}",
        )


def _merged(parts: list[GgufFile]) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    for part in parts:
        for name, tensor in part.tensors.items():
            if name in tensors:
                raise damaged(part.path.name, f"an earlier part has the tensor {shown(name)} too")
            tensors[name] = tensor
    expected = parts[0].get_int("split.tensors.count", len(tensors))
    if expected != len(tensors):
        raise damaged(parts[0].path.name, f"its parts hold {len(tensors):,} tensors in all, not {expected:,}")
    return tensors


def _open_part(path: Path) -> GgufFile:
    mapped = _map(path)
    try:
        num_tensors, num_entries = check_header(mapped, path.name)
        cursor = Cursor(mapped, path.name, HEADER_BYTES)
        metadata = read_metadata(cursor, num_entries)
        tensors = read_tensors(cursor, num_tensors, metadata)
    except (CorruptFile, UnsupportedQuantization):
        _release(mapped)
        raise
    return GgufFile(path, metadata, tensors, (mapped,))


def _map(path: Path) -> mmap.mmap:
    if not path.exists():
        raise ModelNotFound(f"There is no file {path}. Check the path, or drop the file on the window.")
    if not path.is_file():  # opening a pipe would wait for its other end
        raise ModelNotFound(f"{path.name} is not a file. Choose the .gguf file itself.")
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise CorruptFile(f"{path.name} is empty, as a download that never began leaves it. Download it again.")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelNotFound(f"{path.name} can't be opened: {error.strerror}. Check who may read the file.") from error


def _release(mapped: mmap.mmap) -> None:
    try:
        mapped.close()
    except BufferError:
        pass  # a tensor view still points into it; unmapping now would crash its reader

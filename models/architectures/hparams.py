"""A model's own numbers in its metadata, read with their limits, none of them ignored.

A key that no one asked for is refused unless it is switched off, for a setting that is silently dropped gives wrong
answers. Knows the key names that architectures share, not what the numbers mean. Called by the thread that opens the
model.
"""

import math
from collections import Counter

from models.errors import UnsupportedArchitecture, damaged, shown
from models.gguf import GgufFile

_MAX_COUNT = 2**31 - 1
_MAX_NAME_CHARS = 120

# These inform or repeat what the tensors' shapes say; nothing is computed from them.
_INFORMATIVE = (
    "vocab_size",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
    "tensor_data_layout",
)

_FILE_TYPES = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    32: "BF16",
}


class Hparams:
    """The entries under one architecture's prefix. Keys are given without it. Getters raise CorruptFile."""

    def __init__(self, gguf: GgufFile, architecture: str) -> None:
        self._gguf = gguf
        self._prefix = architecture + "."
        self._asked = {self._prefix + key for key in _INFORMATIVE}

    def has(self, key: str) -> bool:
        return self._prefix + key in self._gguf.metadata

    def count(self, key: str, default: int | None = None) -> int:
        """A whole number from 1 up."""
        value = self._gguf.get_int(self._ask(key), default)
        if not 1 <= value <= _MAX_COUNT:
            raise damaged(self._gguf.path.name, f"its entry {shown(self._prefix + key)} is {value:,}")
        return value

    def count_or_zero(self, key: str) -> int:
        """A whole number; 0 where there is no such entry."""
        value = self._gguf.get_int(self._ask(key), 0)
        return self.count(key) if value else 0

    def positive(self, key: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self._gguf.get_float(self._ask(key), default)
        if not (math.isfinite(value) and value > 0):
            raise damaged(self._gguf.path.name, f"its entry {shown(self._prefix + key)} is {value}")
        return value

    def must_divide(self, part: int, part_key: str, whole: int, whole_key: str) -> None:
        if whole % part:
            raise damaged(
                self._gguf.path.name,
                f"its {shown(self._prefix + part_key)}, {part:,}, does not divide its "
                f"{shown(self._prefix + whole_key)}, {whole:,}",
            )

    def must_be(self, key: str, only: int | bool) -> None:
        """Refuse every value but one. Raises UnsupportedArchitecture."""
        name = self._ask(key)
        value = self._gguf.get_bool(name, only) if isinstance(only, bool) else self._gguf.get_int(name, only)
        if value != only:
            raise self._not_honoured(key)

    def rope_dim(self, head_dim: int) -> int:
        """How many elements of a head are rotated: all of them unless the file says fewer."""
        dim = self.count("rope.dimension_count", head_dim)
        if dim > head_dim or dim % 2:
            raise damaged(
                self._gguf.path.name,
                f'its entry "{self._prefix}rope.dimension_count" is {dim:,} where a head has {head_dim:,} elements',
            )
        return dim

    def linear_rope_scale(self) -> float:
        """What positions are divided by; 1.0 where nothing is scaled. Raises UnsupportedArchitecture for other ways."""
        kind = self._gguf.get_str(self._ask("rope.scaling.type"), "linear")
        if kind not in ("linear", "none"):
            raise self._not_honoured("rope.scaling.type", f" {shown(kind)}")
        older = self._gguf.get_float(self._ask("rope.scale_linear"), 0.0)
        factor = self._gguf.get_float(self._ask("rope.scaling.factor"), older)
        if kind == "none" or factor == 0.0:
            return 1.0
        if not (math.isfinite(factor) and factor > 0):
            raise damaged(self._gguf.path.name, f"its positions are scaled by {factor}")
        return factor

    def name(self) -> str:
        """What the model calls itself, on one line; without a name, the file's."""
        printable = "".join(char if char.isprintable() else " " for char in self._gguf.get_str("general.name", ""))
        return " ".join(printable.split())[:_MAX_NAME_CHARS] or self._gguf.path.stem

    def file_type(self) -> str:
        """The declared file type, else the block type that most bytes are stored in."""
        declared = self._gguf.get_int("general.file_type", -1)
        if declared in _FILE_TYPES:
            return _FILE_TYPES[declared]
        bytes_by_type: Counter[str] = Counter()
        for tensor in self._gguf.tensors.values():
            bytes_by_type[tensor.block_type.name] += tensor.data.size
        return bytes_by_type.most_common(1)[0][0]

    def refuse_leftovers(self) -> None:
        """Raises UnsupportedArchitecture for an entry that is on and that nobody asked for."""
        for key in self._gguf.metadata:
            if key.startswith(self._prefix) and key not in self._asked and not self._is_off(key):
                raise self._not_honoured(key.removeprefix(self._prefix))

    def _is_off(self, key: str) -> bool:
        value = self._gguf.metadata[key]
        return isinstance(value, int | float | str) and (not value or value == "none")

    def _ask(self, key: str) -> str:
        self._asked.add(self._prefix + key)
        return self._prefix + key

    def _not_honoured(self, key: str, value: str = "") -> UnsupportedArchitecture:
        return UnsupportedArchitecture(
            f"{self._gguf.path.name} uses {shown(self._prefix + key)}{value}, which Inglenook can't do yet. "
            "Choose a version of the model without it."
        )

"""The tensors of a file while an architecture lays claim to them: present, of the right shape, none left over.

Does not know architectures. Called by the thread that opens the model.
"""

from models.errors import TensorMismatch, UnsupportedArchitecture, shown
from models.gguf import GgufFile


class Weights:
    """Answers with a tensor's name once it is known to fit."""

    def __init__(self, gguf: GgufFile) -> None:
        self._gguf = gguf
        self._claimed: set[str] = set()

    def need(self, name: str, *shape: int) -> str:
        """The name of a tensor that must be there. Raises TensorMismatch where it isn't or has another shape."""
        tensor = self._gguf.tensors.get(name)
        if tensor is None:
            raise self._absent(name)
        if tensor.shape != shape:
            raise TensorMismatch(
                f"{self._gguf.path.name} has {shown(name)} as {_sizes(tensor.shape)} where its description asks for "
                f"{_sizes(shape)}. Get another version of the model."
            )
        self._claimed.add(name)
        return name

    def maybe(self, name: str, *shape: int) -> str | None:
        """As `need`, but None where there is no such tensor."""
        return self.need(name, *shape) if name in self._gguf.tensors else None

    def rows(self, name: str) -> int:
        """The slowest dimension of a tensor that must be there."""
        if name not in self._gguf.tensors:
            raise self._absent(name)
        return self._gguf.tensors[name].shape[0]

    def refuse_leftovers(self) -> None:
        """Raises UnsupportedArchitecture for a tensor nobody claimed: ignoring it would give wrong answers."""
        for name in self._gguf.tensors:
            if name not in self._claimed:
                raise UnsupportedArchitecture(
                    f"{self._gguf.path.name} has the tensor {shown(name)}, which Inglenook doesn't know how to use. "
                    "Choose a model of a kind that it runs."
                )

    def _absent(self, name: str) -> TensorMismatch:
        return TensorMismatch(f"{self._gguf.path.name} has no tensor {shown(name)}. Download it again.")


def _sizes(shape: tuple[int, ...]) -> str:
    return " x ".join(f"{size:,}" for size in shape)

"""From an open file to a description of its model: picks the architecture and makes sure that the file fits it.

One file per architecture says what the model is; the table below names them. Does not know kernels or devices.
Called by the thread that opens the model.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from models.architectures import llama
from models.errors import UnsupportedArchitecture, damaged, shown
from models.gguf import GgufFile
from models.gguf_vocab import check_vocabulary
from models.stages import Model

ARCHITECTURES: Mapping[str, Callable[[GgufFile], Model]] = MappingProxyType({"llama": llama.describe})

__all__ = ["ARCHITECTURES", "describe"]


def describe(gguf: GgufFile) -> Model:
    """What the file's model computes, with every tensor it names present and of the right shape.

    Raises UnsupportedArchitecture for what can't be run, TensorMismatch for absent or misshapen weights, CorruptFile
    where the file's own description or its vocabulary contradicts itself.
    """
    kind = gguf.get_str("general.type", "model")
    if kind != "model":
        raise UnsupportedArchitecture(f"{gguf.path.name} holds {shown(kind)} data, not a model. Open the model itself.")
    if not gguf.tensors:
        raise damaged(gguf.path.name, "it holds no weights")
    architecture = gguf.get_str("general.architecture")
    if architecture not in ARCHITECTURES:
        raise UnsupportedArchitecture(
            f"This file holds a {shown(architecture)} model. Inglenook can't run that kind yet. "
            f"It runs {', '.join(ARCHITECTURES)} models."
        )
    model = ARCHITECTURES[architecture](gguf)
    check_vocabulary(gguf, model.config.vocab_size)
    return model

"""Everything that can be wrong with a model, as one small tree.

ModelError: ModelNotFound, CorruptFile, UnsupportedArchitecture, UnsupportedQuantization, TensorMismatch, TemplateError

Each message is one line for a person: the cause, then the way out. Text that comes out of a file is untrusted and
passes through `shown` first. Does not know who shows the message. No thread of its own.
"""

_SHOWN_CHARS = 80


class ModelError(Exception):
    """The model can't be used; the message says why and what to do about it."""


class ModelNotFound(ModelError):
    """No such model, or its file can't be opened."""


class CorruptFile(ModelError):
    """The file contradicts itself or its format."""


class UnsupportedArchitecture(ModelError):
    """A sound file of a kind of model that Inglenook doesn't compute."""


class UnsupportedQuantization(ModelError):
    """A sound file with a block type that Inglenook doesn't compute."""


class TensorMismatch(ModelError):
    """A weight is absent or has another shape than the model's own description says."""


class TemplateError(ModelError):
    """The model's chat template can't be compiled or refuses the conversation."""


def shown(text: str) -> str:
    """Quote text from a file for a message: one line, printable, short."""
    clean = "".join(char if char.isprintable() else "\ufffd" for char in text[: _SHOWN_CHARS + 1])
    return f'"{clean[:_SHOWN_CHARS]}…"' if len(clean) > _SHOWN_CHARS else f'"{clean}"'


def damaged(file_name: str, what: str) -> CorruptFile:
    """A CorruptFile for a file that most likely arrived incomplete or altered."""
    return CorruptFile(f"{file_name} is damaged: {what}. Download it again.")

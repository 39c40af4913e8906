"""Everything that the engine raises or reports, as one tree. Knows nothing else; any thread.

EngineError
    RequestRejected         the request cannot be admitted
        ContextTooLong      prompt longer than the context
        InvalidParameter    a value outside its range
        QueueFull           too many requests are waiting
    ModelNotLoaded          no model, or the load failed
    DeviceFailed            the GPU or its driver cannot do what was asked
    OutOfMemory             what was asked takes more memory than there is; the model goes on
    EngineStopped           the engine was shut down
"""


class EngineError(Exception):
    """Root of the engine's errors; str() is one sentence or two that a person can act on."""


class RequestRejected(EngineError):
    """The request was not admitted; nothing was computed."""


class ContextTooLong(RequestRejected):
    """The prompt does not fit the context that the model was loaded with."""


class InvalidParameter(RequestRejected, ValueError):
    """A sampling or request parameter is outside its range; `param` is the name of its field, where it has one."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class QueueFull(RequestRejected):
    """Too many requests are waiting."""


class ModelNotLoaded(EngineError):
    """There is no model to answer with, or loading it failed."""


class DeviceFailed(EngineError):
    """No usable adapter, or the device was lost."""


class OutOfMemory(EngineError):
    """The device refused a buffer that only some requests need. It is not lost, and what it has goes on."""


class EngineStopped(EngineError):
    """The engine was shut down while the request was open."""

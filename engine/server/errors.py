"""What goes wrong in an exchange: the HTTP status and the JSON that clients of OpenAI's API expect for it.

Owns the one table from the errors of the layers below to statuses. Immutable; any thread.
"""

from __future__ import annotations

from engine.errors import (
    ContextTooLong,
    EngineError,
    EngineStopped,
    InvalidParameter,
    ModelNotLoaded,
    QueueFull,
    RequestRejected,
)
from engine.request import Delta
from engine.server.protocol import HONOURED, ErrorBody, ErrorEnvelope
from models.errors import ModelError, TemplateError

_CUT_SHORT = "The answer was stopped before its end, because the model was unloaded or Inglenook is closing. Ask again."

# The first row that fits counts: (class, status, code).
_STATUSES: tuple[tuple[type[Exception], int, str | None], ...] = (
    (ContextTooLong, 400, "context_length_exceeded"),
    (InvalidParameter, 400, "invalid_value"),
    (QueueFull, 429, "queue_full"),
    (RequestRejected, 400, None),
    (ModelNotLoaded, 503, "no_model"),
    (EngineStopped, 503, "stopping"),
    (EngineError, 500, None),
    (TemplateError, 400, None),
    (ModelError, 500, None),
)


class ApiError(Exception):
    """An exchange that ends with an error. `param` names the field at fault, `code` is for programs."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code

    @property
    def envelope(self) -> ErrorEnvelope:
        """The JSON of it."""
        kind = {401: "authentication_error", 429: "rate_limit_error"}.get(self.status, "invalid_request_error")
        kind = "server_error" if self.status >= 500 else kind
        return ErrorEnvelope(error=ErrorBody(message=self.message, type=kind, param=self.param, code=self.code))

    @property
    def headers(self) -> dict[str, str]:
        """What the status wants said in the response's head."""
        return {401: {"www-authenticate": "Bearer"}, 429: {"retry-after": "1"}}.get(self.status, {})


def of_exception(error: EngineError | ModelError) -> ApiError:
    """The error of a layer below."""
    status, code = next((status, code) for kind, status, code in _STATUSES if isinstance(error, kind))
    param = {ContextTooLong: "messages", TemplateError: "messages"}.get(type(error))
    if isinstance(error, InvalidParameter):
        param = error.param if error.param in HONOURED else None
    return ApiError(status, str(error), param=param, code=code)


def of_delta(delta: Delta) -> ApiError:
    """What a delta with finish_reason "error" or "abort" means to a client that asked for neither."""
    if delta.finish_reason == "abort":
        return ApiError(503, _CUT_SHORT, code="stopped")
    for kind, status, code in _STATUSES:
        if delta.error_type == kind.__name__:
            return ApiError(status, delta.error or "The request was refused.", code=code)
    return ApiError(500, delta.error or "The engine failed. Send the request again.", code="engine_error")


def no_such_model(asked: str, served: str) -> ApiError:
    """The request names a model that is not here."""
    message = f"There is no model {asked!r} here; this endpoint serves {served!r}."
    return ApiError(404, message, param="model", code="model_not_found")

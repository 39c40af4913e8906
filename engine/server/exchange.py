"""One HTTP exchange below the level of routes: the body, the JSON that goes back, and a client that hangs up.

Knows ASGI, not what is said. Runs on the endpoint's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping

import msgspec
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope

from engine.server.errors import ApiError

_encoder = msgspec.json.Encoder()
_DRAINED_AT_MOST = 4  # times the largest body allowed


class ClientGone(Exception):
    """The client hung up before its request had arrived; there is nobody to answer."""


def encode(value: msgspec.Struct) -> bytes:
    """The value as JSON."""
    return _encoder.encode(value)


def json_response(value: msgspec.Struct, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A response of one JSON value."""
    return Response(encode(value), status, headers, media_type="application/json")


def error_response(error: ApiError) -> Response:
    """The response that an error makes."""
    return json_response(error.envelope, error.status, error.headers)


async def read_body(scope: Scope, receive: Receive, max_bytes: int) -> bytes:
    """The request's body. Raises ApiError (413) where it is too long and ClientGone where it does not arrive."""
    declared = Headers(scope=scope).get("content-length", "")
    too_long = declared.isdecimal() and int(declared) > max_bytes
    received: list[bytes] = []
    num_bytes, more = 0, True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientGone
        more = message.get("more_body", False)
        num_bytes += len(message.get("body", b""))
        too_long = too_long or num_bytes > max_bytes
        if too_long:
            # Read on, within reason: a client that is cut off while it sends often never sees the answer.
            received.clear()
            more = more and num_bytes <= _DRAINED_AT_MOST * max_bytes
        else:
            received.append(message.get("body", b""))
    if too_long:
        raise ApiError(413, f"The request is larger than {max_bytes // 2**20} MiB. Send a shorter conversation.")
    return b"".join(received)


async def unless_gone(receive: Receive, work: Coroutine[None, None, None]) -> None:
    """Do the work of an exchange whose body was read; cancel it once the client hangs up. Raises what it raises."""
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_hung_up(receive))
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
    finally:
        finished = working.done()
        for task in (working, gone):
            task.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)
    if finished:
        working.result()


async def _hung_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

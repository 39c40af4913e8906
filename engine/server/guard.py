"""Who may call: by the name they call, the page they come from and the key they show, before anything else is read.

A page on the web can send requests to this computer from its reader's browser. Where it does so under a name of its own
that resolves to this computer (DNS rebinding) the Host header tells; else its Origin header does. No CORS headers are
sent. Runs on the endpoint's event loop.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from engine.server.errors import ApiError
from engine.server.exchange import error_response
from engine.server.settings import EndpointSettings

_OPEN_PATHS = frozenset({"/health"})
_WRONG_HOST = "This endpoint does not answer to the name {name!r}. Call it by its address."
_WEB_PAGE = "Pages from {origin} may not use this endpoint."
_WRONG_KEY = "The API key is missing or wrong. Send the endpoint's key as 'Authorization: Bearer KEY'."


class Guard:
    """ASGI middleware that lets only welcome requests through."""

    def __init__(self, app: ASGIApp, settings: EndpointSettings) -> None:
        self._app = app
        self._key = None if settings.api_key is None else settings.api_key.encode()
        self._any_address = not is_loopback(settings.host)
        self._names = {settings.host.lower()}
        if self._any_address:
            own = socket.gethostname().lower()
            self._names |= {own, own.partition(".")[0], f"{own.partition('.')[0]}.local"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        error = self._host_error(headers) or self._origin_error(headers) or self._key_error(scope["path"], headers)
        if error is not None:
            await error_response(error)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _host_error(self, headers: Headers) -> ApiError | None:
        hosts = headers.getlist("host")
        name = host_name(hosts[0]) if len(hosts) == 1 else None
        if name is not None and self._is_welcome(name):
            return None
        return ApiError(403, _WRONG_HOST.format(name=name or ""), code="host_not_allowed")

    def _origin_error(self, headers: Headers) -> ApiError | None:
        origin = headers.get("origin")
        if origin is None:
            return None
        scheme, _, rest = origin.partition("://")
        # Apps built on a browser's engine have schemes of their own; "null" is any page's to claim.
        own_scheme = rest and scheme not in ("http", "https")
        name = host_name(rest)
        if own_scheme or (name is not None and self._is_welcome(name)):
            return None
        return ApiError(403, _WEB_PAGE.format(origin=origin), code="origin_not_allowed")

    def _key_error(self, path: str, headers: Headers) -> ApiError | None:
        if self._key is None or path in _OPEN_PATHS:
            return None
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode("latin-1"), self._key):
            return None
        return ApiError(401, _WRONG_KEY, code="invalid_api_key")

    def _is_welcome(self, name: str) -> bool:
        # No rebinding can make a browser send an address as the name, so addresses are safe.
        return name in self._names or is_loopback(name) or (self._any_address and _address(name) is not None)


def is_loopback(host: str) -> bool:
    """Whether the name or address means this computer and is reached from nowhere else."""
    address = _address(host)
    return host == "localhost" or host.endswith(".localhost") or (address is not None and address.is_loopback)


def host_name(netloc: str) -> str | None:
    """The name in `name:port`, without brackets and in lower case; None where it is malformed."""
    try:
        return urlsplit(f"//{netloc}").hostname
    except ValueError:
        return None


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None

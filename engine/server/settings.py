"""What the user decides about the endpoint. Imports nothing heavy, for the command line's help shows the defaults."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 4117


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSettings:
    """`api_key` None lets everyone in who reaches the port. `max_open` requests may be open at once, waiting ones too;
    it stays below the engine's own bound, so that the window always gets in. `use_cache` lets requests use and leave
    what was computed, `persist` leave it on disk; a request may ask for less."""

    host: str = DEFAULT_HOST
    api_key: str | None = None
    max_body_bytes: int = 32 * 2**20
    max_open: int = 512
    use_cache: bool = True
    persist: bool = True

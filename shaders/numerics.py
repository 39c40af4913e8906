"""Which arithmetic the kernels do, as a value that is kept beside what they computed.

Two versions of Inglenook with one digest give the same bits for the same input on the same device. Owns the version
that people raise and the digest over the kernels' text without comments and layout. Imports no GPU. Any thread.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

NUMERICS_VERSION = 1
"""Raise it where the same kernels are made to compute other bits: dispatch, overrides, order of sums, packing."""

_SUFFIX = ".wgsl"
# A comment ends where WGSL sees the line's end, which is not only at "\n".
_COMMENT = re.compile(r"//[^\n\v\f\r\x85\u2028\u2029]*|/\*")
_NESTING = re.compile(r"/\*|\*/")
_DIRECTIVE = re.compile(r"^//!.*$", re.MULTILINE)
_TOKEN = re.compile(r"[\w.]+|[^\w\s]")


@cache
def numerics_digest() -> bytes:
    """16 bytes for the arithmetic of this process: NUMERICS_VERSION and every kernel file. Reads them once."""
    digest = hashlib.blake2b(f"{NUMERICS_VERSION}\0".encode(), digest_size=16)
    for name, text in sorted(_kernels(resources.files("shaders").joinpath("wgsl"), "")):
        digest.update(f"{name}\0{essence(text)}\0".encode())
    return digest.digest()


def essence(text: str) -> str:
    """A WGSL text without comments and white space, one token a line; equal for texts that compile to the same."""
    tokens = [f"include {directive}" for directive in _DIRECTIVE.findall(text)]  # spliced by shaders/source.py
    return "\n".join([*tokens, *_TOKEN.findall(_without_comments(text))])


def _without_comments(text: str) -> str:
    kept: list[str] = []
    at = 0
    while (match := _COMMENT.search(text, at)) is not None:
        kept.append(text[at : match.start()])
        at = match.end() if match[0] != "/*" else _end_of_block(text, match.end())
    return " ".join([*kept, text[at:]])


def _end_of_block(text: str, at: int) -> int:
    """Block comments nest in WGSL; one that is never closed reaches to the end."""
    depth = 1
    while depth and (match := _NESTING.search(text, at)) is not None:
        depth += 1 if match[0] == "/*" else -1
        at = match.end()
    return len(text) if depth else at


def _kernels(folder: Traversable, prefix: str) -> Iterator[tuple[str, str]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _kernels(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(_SUFFIX):
            yield f"{prefix}{entry.name}", entry.read_text(encoding="utf-8")

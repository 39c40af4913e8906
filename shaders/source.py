"""Turns a kernel's WGSL file into one text for the compiler: includes, link slots, and the rules that a kernel obeys.

Owns: `//!include "common/rope.wgsl"`, `//!include <slot>` (which file fills a slot is the variant's choice), each
spliced once; the check of a file's header against its real bindings and overrides; the refusal of a variable without
an initializer inside a function, since naga keeps such a variable's value from the last turn of a loop
(gfx-rs/wgpu#9489). Knows nothing of devices. Any thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal

from shaders.errors import SourceError

Access = Literal["read", "read_write", "uniform"]
ReadFile = Callable[[str], str]

_INCLUDE = re.compile(r'^//!include\s+(?:"([\w/.]+)"|<(\w+)>)\s*$')
_BINDING = re.compile(
    r"^@group\(0\)\s*@binding\((\d+)\)\s*var<(storage(?:,\s*(read|read_write))?|uniform)>\s*(\w+)\s*:"
)
_OVERRIDE = re.compile(r"^override\s+(\w+)\s*:")
_HEADER = re.compile(r"^//\s+(binding|override|slot)\s+(\w+)(?:\s+(read_write|read|uniform))?\b")
_BARE_VAR = re.compile(r"^\s+var(?:<function>)?\s+\w+\s*(?::[^=;]+)?;")


@dataclass(frozen=True, slots=True)
class Binding:
    """One buffer that a kernel binds, at the index of its place in the file."""

    name: str
    access: Access


@dataclass(frozen=True, slots=True)
class ShaderSource:
    """A flattened kernel: text, bindings in order, names of its overrides, and where each line came from."""

    name: str
    code: str
    bindings: tuple[Binding, ...]
    overrides: frozenset[str]
    lines: tuple[tuple[str, int], ...]

    def locate(self, line: int) -> str:
        """`file.wgsl:29` for a line of the flattened text, counted from 1."""
        file, number = self.lines[min(max(line, 1), len(self.lines)) - 1]
        return f"{file}:{number}"


def load_source(name: str, slots: Mapping[str, str] | None = None) -> ShaderSource:
    """Flatten `wgsl/<name>.wgsl`; slots maps a slot's name to the file that fills it.

    Raises SourceError, starting with file and line, where a file is missing or breaks a rule.
    """
    return flatten(f"{name}.wgsl", _read, tuple(sorted((slots or {}).items())))


@cache
def _read(file: str) -> str:
    path = resources.files("shaders").joinpath("wgsl", *file.split("/"))
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise SourceError(f"{file}: no such shader file") from error


def flatten(file: str, read: ReadFile, slots: tuple[tuple[str, str], ...]) -> ShaderSource:
    """load_source with the reader given, so that tests can pass texts of their own."""
    text: list[str] = []
    origin: list[tuple[str, int]] = []
    _splice(file, read, dict(slots), text, origin, seen=set())
    header = _parse_header(file, read(file))
    bindings, overrides = _parse_declarations(text, origin)
    _check_header(file, header, bindings, overrides, dict(slots))
    _refuse_bare_variables(text, origin)
    return ShaderSource(file, "\n".join(text), bindings, overrides, tuple(origin))


def _splice(
    file: str,
    read: ReadFile,
    slots: dict[str, str],
    text: list[str],
    origin: list[tuple[str, int]],
    seen: set[str],
) -> None:
    if file in seen:
        return
    seen.add(file)
    for number, line in enumerate(read(file).splitlines(), 1):
        match = _INCLUDE.match(line)
        if match is None:
            if line.startswith("//!"):
                raise SourceError(f"{file}:{number}: cannot read this directive: {line}")
            text.append(line)
            origin.append((file, number))
            continue
        target = match[1]
        if target is None:
            target = slots.get(match[2], "")
            if not target:
                raise SourceError(f"{file}:{number}: nothing fills the slot <{match[2]}>")
        _splice(target, read, slots, text, origin, seen)


def _parse_header(file: str, text: str) -> dict[str, dict[str, str | None]]:
    header: dict[str, dict[str, str | None]] = {"binding": {}, "override": {}, "slot": {}}
    for line in text.splitlines():
        if not line.startswith("//"):
            break
        match = _HEADER.match(line)
        if match is not None:
            header[match[1]][match[2]] = match[3]
    return header


def _parse_declarations(text: list[str], origin: list[tuple[str, int]]) -> tuple[tuple[Binding, ...], frozenset[str]]:
    bindings: list[Binding] = []
    overrides: set[str] = set()
    for line, (file, number) in zip(text, origin, strict=True):
        match = _BINDING.match(line)
        if match is not None:
            if int(match[1]) != len(bindings):
                raise SourceError(f"{file}:{number}: binding {match[1]} stands where {len(bindings)} is due")
            access: Access = (
                "uniform" if match[2] == "uniform" else "read_write" if match[3] == "read_write" else "read"
            )
            bindings.append(Binding(match[4], access))
        elif line.lstrip().startswith("@group"):
            raise SourceError(f"{file}:{number}: a binding is one line: @group(0) @binding(n) var<...> name: type;")
        elif (override := _OVERRIDE.match(line)) is not None:
            overrides.add(override[1])
    return tuple(bindings), frozenset(overrides)


def _check_header(
    file: str,
    header: dict[str, dict[str, str | None]],
    bindings: tuple[Binding, ...],
    overrides: frozenset[str],
    slots: dict[str, str],
) -> None:
    said = list(header["binding"].items())
    real = [(b.name, b.access) for b in bindings]
    if said != real:
        raise SourceError(f"{file}:1: the header names the bindings {said}, the code has {real}")
    if set(header["override"]) != set(overrides):
        raise SourceError(
            f"{file}:1: the header names the overrides {sorted(header['override'])}, the code has {sorted(overrides)}"
        )
    if set(header["slot"]) != set(slots):
        raise SourceError(f"{file}:1: the header names the slots {sorted(header['slot'])}, given are {sorted(slots)}")


def _refuse_bare_variables(text: list[str], origin: list[tuple[str, int]]) -> None:
    for line, (file, number) in zip(text, origin, strict=True):
        if _BARE_VAR.match(line):
            raise SourceError(f"{file}:{number}: give this variable an initializer: {line.strip()}")

"""Examines this computer: adapters, features, limits, the kernels that would run, and what is wrong.

Knows how to ask, not how to print. Any thread; opens a device of its own and closes it again.
"""

from __future__ import annotations

import platform
import sys
from importlib.metadata import PackageNotFoundError, version

from engine import __version__
from shaders.adapters import NO_ADAPTER, AdapterInfo, list_adapters
from shaders.device import Gpu, open_gpu
from shaders.errors import ShaderError
from shaders.memory import memory_budget
from shaders.traits import probe

_PACKAGES = ("wgpu", "numpy", "tokenizers", "minijinja", "PySide6-Essentials")
_LIMITS = (
    "max-storage-buffer-binding-size",
    "max-buffer-size",
    "max-storage-buffers-per-shader-stage",
    "max-compute-workgroup-storage-size",
)
_SOFTWARE = "No graphics adapter can be used, so models run slowly here, on the processor. Install the graphics driver."


def examine(adapter: str | None = None) -> dict[str, object]:
    """Everything as plain values for JSON. `problems` is empty where all is well, the gravest first.

    adapter: a part of the name of the one to choose.
    """
    report: dict[str, object] = {
        "adapters": [],
        "chosen": None,
        "features": [],
        "limits": {},
        "subgroup_size": 0,
        "kernel_set": None,
        "kernel_reason": None,
        "memory": None,
        "problems": [],
        "versions": _versions(),
    }
    try:
        adapters = list_adapters()
        report["adapters"] = [_described(a) for a in adapters]
        if not adapters:
            return report | {"problems": [NO_ADAPTER]}
        gpu = open_gpu(adapter)
    except ShaderError as error:
        return report | {"problems": [str(error)]}
    try:
        return report | _examined(gpu)
    finally:
        gpu.close()


def _examined(gpu: Gpu) -> dict[str, object]:
    problems = [_SOFTWARE] if gpu.adapter.software else []
    found: dict[str, object] = {
        "chosen": gpu.adapter.name,
        "features": sorted(gpu.features),
        "limits": {key: gpu.limits[key] for key in _LIMITS},
        "problems": problems,
    }
    budget = memory_budget(gpu.adapter)
    found["memory"] = {"budget_bytes": budget.bytes, "source": budget.source}
    try:
        traits = probe(gpu)
    except ShaderError as error:
        problems.insert(0, str(error))
        return found
    return found | {
        "subgroup_size": traits.subgroup_size,
        "kernel_set": traits.kernel_set,
        "kernel_reason": traits.reason,
    }


def _described(adapter: AdapterInfo) -> dict[str, object]:
    return {
        "name": adapter.name,
        "backend": adapter.backend,
        "type": adapter.kind,
        "driver": adapter.driver,
        "usable": True,
        "reason": "software, slow" if adapter.software else "",
    }


def _versions() -> dict[str, str]:
    found = {"inglenook": __version__, "python": sys.version.split()[0], "system": platform.platform()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "missing"
    return found

"""Which adapters this machine has and which of them count: Vulkan, Metal and D3D12, never OpenGL.

Knows nothing of kernels. Any thread, one at a time.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shaders.errors import NoUsableAdapter
from shaders.loss import listen

if TYPE_CHECKING:
    import wgpu

_BACKENDS = ("Vulkan", "Metal", "DX12")
_RANK = {"DiscreteGPU": 0, "IntegratedGPU": 1, "Unknown": 2, "CPU": 3}
_BACKEND_RANK = {"Metal": 0, "Vulkan": 1, "D3D12": 2}

NO_ADAPTER = (
    "No graphics adapter with Vulkan, Metal or Direct3D 12 was found. Install or update the graphics driver; "
    "on Debian and Ubuntu, 'apt-get install libvulkan1 mesa-vulkan-drivers' brings one that works without a GPU."
)


@dataclass(frozen=True, slots=True)
class AdapterInfo:
    """What an adapter says of itself. kind is DiscreteGPU, IntegratedGPU, CPU (software) or Unknown."""

    name: str
    backend: str
    kind: str
    driver: str
    handle: wgpu.GPUAdapter

    @property
    def software(self) -> bool:
        """Whether the adapter is a program on the CPU."""
        return self.kind == "CPU"


_instance_ready = False


def list_adapters() -> list[AdapterInfo]:
    """All adapters that count, best first: discrete before integrated before software, Vulkan before D3D12."""
    gpu = _instance()
    found = [
        AdapterInfo(
            name=a.info["device"] or a.info["description"] or "unnamed adapter",
            backend=a.info["backend_type"],
            kind=a.info["adapter_type"],
            driver=a.info["description"],
            handle=a,
        )
        for a in gpu.enumerate_adapters_sync()
    ]
    usable = [a for a in found if a.backend in _BACKEND_RANK]
    return sorted(usable, key=lambda a: (_RANK.get(a.kind, 2), _BACKEND_RANK[a.backend]))


def pick_adapter(name: str | None = None) -> AdapterInfo:
    """The best adapter, or the best whose name contains `name`, case aside. Raises NoUsableAdapter."""
    adapters = list_adapters()
    if not adapters:
        raise NoUsableAdapter(NO_ADAPTER)
    if name is None:
        return adapters[0]
    for adapter in adapters:
        if name.lower() in f"{adapter.name} ({adapter.backend})".lower():
            return adapter
    names = ", ".join(f'"{a.name}"' for a in adapters)
    raise NoUsableAdapter(f'No adapter is called "{name}". This computer has {names}.')


def _instance() -> wgpu.GPU:
    """wgpu's entry object, limited to the backends that count before its first use."""
    global _instance_ready
    if os.name == "posix":  # Mesa complains on stderr without it
        os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())
    import wgpu
    from wgpu.backends.wgpu_native.extras import set_instance_extras

    if not _instance_ready:
        set_instance_extras(backends=list(_BACKENDS))
        listen()
        _instance_ready = True
    return wgpu.gpu

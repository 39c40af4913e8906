"""Which adapters count, in which order, and what is said where none does."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from shaders import adapters
from shaders.adapters import NO_ADAPTER, list_adapters, pick_adapter
from shaders.device import Gpu
from shaders.errors import NoUsableAdapter

ROOT = Path(__file__).parents[2]


def given(monkeypatch: pytest.MonkeyPatch, *found: tuple[str, str, str]) -> None:
    """A computer with these adapters: (name, backend, kind)."""
    keys = ("device", "description", "backend_type", "adapter_type")
    handles = [
        SimpleNamespace(info=dict(zip(keys, (name, f"{name} driver", backend, kind), strict=True)))
        for name, backend, kind in found
    ]
    monkeypatch.setattr(adapters, "_instance", lambda: SimpleNamespace(enumerate_adapters_sync=lambda: handles))


MANY = [
    ("llvmpipe (LLVM 15, 256 bits)", "Vulkan", "CPU"),
    ("Small Graphics 630", "D3D12", "IntegratedGPU"),
    ("Small Graphics 630", "Vulkan", "IntegratedGPU"),
    ("Large GPU", "OpenGL", "DiscreteGPU"),
    ("Large GPU", "D3D12", "DiscreteGPU"),
    ("Large GPU", "Vulkan", "DiscreteGPU"),
    ("Odd One", "Vulkan", "Unknown"),
]


def test_best_first_and_never_opengl(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, *MANY)
    assert [(a.name, a.backend) for a in list_adapters()] == [
        ("Large GPU", "Vulkan"),
        ("Large GPU", "D3D12"),
        ("Small Graphics 630", "Vulkan"),
        ("Small Graphics 630", "D3D12"),
        ("Odd One", "Vulkan"),
        ("llvmpipe (LLVM 15, 256 bits)", "Vulkan"),
    ]
    assert [a.software for a in list_adapters()] == [False] * 5 + [True]
    assert pick_adapter().name == "Large GPU"


@pytest.mark.parametrize(
    ("name", "expected", "backend"),
    [
        ("large", "Large GPU", "Vulkan"),
        ("LLVMPIPE", "llvmpipe (LLVM 15, 256 bits)", "Vulkan"),
        ("d3d12", "Large GPU", "D3D12"),
        ("graphics 630 (D3D12)", "Small Graphics 630", "D3D12"),
    ],
)
def test_name_matching(monkeypatch: pytest.MonkeyPatch, name: str, expected: str, backend: str) -> None:
    given(monkeypatch, *MANY)
    found = pick_adapter(name)
    assert (found.name, found.backend) == (expected, backend)


def test_an_unknown_name_is_answered_with_those_that_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, MANY[0], MANY[5])
    with pytest.raises(NoUsableAdapter) as caught:
        pick_adapter("Voodoo")
    assert str(caught.value) == (
        'No adapter is called "Voodoo". This computer has "Large GPU", "llvmpipe (LLVM 15, 256 bits)".'
    )


def test_an_adapter_without_a_name_takes_its_driver_s(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, ("", "Vulkan", "CPU"))
    assert list_adapters()[0].name == " driver"


@pytest.mark.parametrize("found", [[], [("Large GPU", "OpenGL", "DiscreteGPU")]], ids=["none", "only OpenGL"])
def test_no_adapter_that_counts(monkeypatch: pytest.MonkeyPatch, found: list[tuple[str, str, str]]) -> None:
    given(monkeypatch, *found)
    for name in (None, "large"):
        with pytest.raises(NoUsableAdapter) as caught:
            pick_adapter(name)
        assert str(caught.value) == NO_ADAPTER


def test_this_computer_s_adapters_are_found_by_name(gpu: Gpu) -> None:
    assert gpu.adapter.backend in ("Vulkan", "Metal", "D3D12")
    found = list_adapters()
    assert gpu.adapter.name == found[0].name
    for adapter in found:
        assert pick_adapter(adapter.name.upper()).name.lower() == adapter.name.lower()


@pytest.mark.skipif(sys.platform != "linux", reason="these variables belong to the Vulkan loader on Linux")
@pytest.mark.parametrize("call", ["pick_adapter()", "open_gpu()", "open_gpu('llvmpipe')"])
def test_without_vulkan_drivers_one_sentence_and_no_traceback(tmp_path: Path, call: str) -> None:
    nothing = tmp_path / "nothing.json"
    nothing.touch()
    code = (
        "from shaders.adapters import pick_adapter\nfrom shaders.device import open_gpu\n"
        "from shaders.errors import NoUsableAdapter\n"
        f"try:\n    {call}\nexcept NoUsableAdapter as error:\n    print(error)"
    )
    environment = os.environ | {"VK_DRIVER_FILES": str(nothing), "VK_ICD_FILENAMES": str(nothing)}
    ran = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ran.returncode, ran.stdout.strip()) == (0, NO_ADAPTER), ran.stderr
    assert "Traceback" not in ran.stderr and "panicked" not in ran.stderr

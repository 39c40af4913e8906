"""The probe's choice between kernel sets: from what the device does, not from what it says."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shaders import traits
from shaders.device import Gpu
from shaders.kernel import Kernel
from shaders.run import run_once
from shaders.source import flatten
from shaders.traits import probe
from tests.shaders.harness import giving_back

ROOT = Path(__file__).parents[2]
COUNT_LANES = """\
// count: lanes that answer together, counted by adding one from each
// binding   found  read_write  [64] u32

@group(0) @binding(0) var<storage, read_write> found: array<u32>;

@compute @workgroup_size(64, 1, 1)
fn main(@builtin(local_invocation_index) local: u32) {
    found[local] = subgroupAdd(1u);
}
"""


@pytest.fixture
def software(gpu: Gpu) -> Gpu:
    if not gpu.adapter.software:
        pytest.skip("this adapter is not software")
    return gpu


def test_finds_the_real_width(gpu: Gpu) -> None:
    if "subgroup" not in gpu.features:
        pytest.skip("no subgroups here")
    source = flatten("count.wgsl", lambda file: COUNT_LANES, ())
    with giving_back(gpu):
        found = gpu.storage("found", 256)
        run_once(gpu, Kernel(gpu, source, {}).bind({"found": found}), (1, 1, 1))
        counted = set(gpu.read(found).view(np.uint32).tolist())
    assert counted == {probe(gpu).subgroup_size}


def test_a_software_adapter_with_eight_lanes_runs_the_fused_set(software: Gpu) -> None:
    found = probe(software)
    assert found.clusters == 1
    assert found.kernel_set == ("fused" if found.subgroup_size % 8 == 0 else "plain")
    assert str(found.subgroup_size) in found.reason


def test_without_the_feature_the_plain_set(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "features", gpu.features - {"subgroup"})
    found = probe(gpu)
    assert (found.kernel_set, found.subgroup_size) == ("plain", 0)
    assert found.reason == "the device has no subgroup operations"


def test_with_too_few_bindings_the_plain_set(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    if probe(gpu).kernel_set == "plain":
        pytest.skip("no fused set here")
    monkeypatch.setitem(gpu.limits, "max-storage-buffers-per-shader-stage", 10)
    found = probe(gpu)
    assert found.kernel_set == "plain" and "only 10 buffers" in found.reason


@pytest.mark.parametrize(
    ("measured", "kernel_set", "size"),
    [
        ((8, False), "plain", 8),
        ((0, False), "plain", 0),
        ((4, True), "plain", 4),
        ((12, True), "plain", 12),
        ((8, True), "fused", 8),
        ((32, True), "fused", 32),
    ],
)
def test_choice_by_measurement(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, measured: tuple[int, bool], kernel_set: str, size: int
) -> None:
    monkeypatch.setattr(gpu, "features", gpu.features | {"subgroup"})
    monkeypatch.setattr(traits, "_measure_subgroups", lambda gpu: measured)
    found = probe(gpu)
    assert (found.kernel_set, found.subgroup_size) == (kernel_set, size)


@pytest.mark.parametrize(("width", "clusters"), [(8, 4), (32, 4), (64, 8)])
def test_a_real_gpu_splits_k(gpu: Gpu, monkeypatch: pytest.MonkeyPatch, width: int, clusters: int) -> None:
    monkeypatch.setattr(gpu, "adapter", replace(gpu.adapter, kind="DiscreteGPU"))
    monkeypatch.setattr(gpu, "features", gpu.features | {"subgroup"})
    monkeypatch.setattr(traits, "_measure_subgroups", lambda gpu: (width, True))
    assert probe(gpu).clusters == clusters


def test_probing_leaves_no_buffer_behind(gpu: Gpu) -> None:
    before = gpu.allocated_bytes
    probe(gpu)
    assert gpu.allocated_bytes == before


@pytest.mark.skipif(sys.platform != "linux", reason="Mesa's software adapter is Linux's here")
@pytest.mark.parametrize(("bits", "size", "kernel_set"), [(128, 4, "plain"), (256, 8, "fused")])
def test_vectors_of_another_width(software: Gpu, bits: int, size: int, kernel_set: str) -> None:
    """Mesa's vectors, as another processor would have them."""
    if "llvmpipe" not in software.adapter.name:
        pytest.skip("not Mesa's software adapter")
    code = (
        "from shaders.device import open_gpu; from shaders.traits import probe\n"
        "found = probe(open_gpu('llvmpipe')); print(found.subgroup_size, found.kernel_set)"
    )
    # Mesa's cache does not tell widths apart: what another width compiled would be run.
    environment = os.environ | {"LP_NATIVE_VECTOR_WIDTH": str(bits), "MESA_SHADER_CACHE_DISABLE": "true"}
    ran = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.stdout.split() == [str(size), kernel_set], ran.stderr

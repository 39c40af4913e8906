"""Loading real files: what is refused, what is let go, what people see, and how much memory it takes on the way."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import engine.loader
from engine.errors import DeviceFailed, ModelNotLoaded
from engine.loader import choose_kernels, display_name, load_model
from engine.loading import LoadCancelled, LoadOptions, LoadProgress
from engine.scoring import score
from models.errors import UnsupportedArchitecture
from shaders.device import Gpu, open_gpu
from shaders.traits import Traits
from tests.engine.gpu.conftest import DATA, load_quietly, table_of

TINY = DATA / "gguf_llama" / "tiny-F16.gguf"
ROOT = DATA.parents[1]
MIB = 1 << 20


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Gpu]:
    """Every device that the loader opens during the test."""
    devices: list[Gpu] = []

    def keep(name: str | None) -> Gpu:
        devices.append(open_gpu(name))
        return devices[-1]

    monkeypatch.setattr(engine.loader, "open_gpu", keep)
    return devices


def never() -> bool:
    return False


@pytest.mark.parametrize(
    "name, shown",
    [
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2 135M Instruct"),
        ("Llama-3.2-1B-Instruct-Q8_0.gguf", "Llama 3.2 1B Instruct"),
        ("Llama-3.2-1B-Instruct-Q4_K_M.gguf", "Llama 3.2 1B Instruct"),
        ("big-model-IQ4_XS-00001-of-00003.gguf", "big model"),
        ("model_bf16.gguf", "model"),
        ("tiny-F16.gguf", "tiny"),
        ("some-f32.gguf", "some"),
        ("plain name.gguf", "plain name"),
        ("F16.gguf", "F16"),
        ("-.gguf", "-.gguf"),
    ],
)
def test_display_name(name: str, shown: str) -> None:
    assert display_name(Path("folder") / name) == shown


def test_what_is_loaded(model_of: Callable) -> None:
    model = model_of(TINY, kernels="fused")
    assert (model.name, model.quantization, model.context_length) == ("tiny", "F16", 512)
    assert model.path == TINY
    assert 0 < model.weight_bytes < TINY.stat().st_size
    assert model.load_s > 0
    assert model.adapter
    assert model.table.in_flight == 0


@pytest.mark.parametrize("context", [0, 513, 2**31 - 1])
def test_context_that_cannot_be(context: int, opened: list[Gpu]) -> None:
    with pytest.raises(ModelNotLoaded, match=f"context of {context} is not possible.* 2 to 512"):
        load_model(LoadOptions(model=TINY, context=context), lambda progress: None, never)
    assert not opened


@pytest.mark.parametrize("context", [2, 17, 512])
def test_context_that_can_be(context: int) -> None:
    model = load_model(LoadOptions(model=TINY, context=context), lambda progress: None, never)
    try:
        assert model.context_length == table_of(model).limits.context_length == context
        ids = list(range(min(context, 40)))
        assert len(score(table_of(model), ids)) == len(ids)
    finally:
        model.table.close()


def test_context_of_one_token() -> None:
    """Of no use, so it may be refused, but in words."""
    try:
        load_model(LoadOptions(model=TINY, context=1), lambda progress: None, never).table.close()
    except ModelNotLoaded as error:
        assert "A context of 1" in str(error)


def test_fused_kernels_on_a_device_without_subgroups(opened: list[Gpu], monkeypatch: pytest.MonkeyPatch) -> None:
    def without_subgroups(name: str | None) -> Gpu:
        opened.append(open_gpu(name))
        opened[-1].features -= {"subgroup"}
        return opened[-1]

    monkeypatch.setattr(engine.loader, "open_gpu", without_subgroups)
    with pytest.raises(DeviceFailed, match="fused kernels cannot run here: the device has no subgroup operations"):
        load_quietly(TINY, kernels="fused")
    assert [gpu.allocated_bytes for gpu in opened] == [0]
    model = load_quietly(TINY)
    try:
        assert table_of(model)._runner._plan.fused == 0
        assert len(score(table_of(model), [1, 2, 3])) == 3
    finally:
        model.table.close()


def test_choice_of_kernels() -> None:
    fused, plain = Traits(8, "fused", 1, "eight lanes"), Traits(0, "plain", 4, "none at all")
    anything = LoadOptions(model=TINY)
    assert choose_kernels(fused, anything) is fused
    assert choose_kernels(plain, anything) is plain
    asked = choose_kernels(fused, LoadOptions(model=TINY, kernels="plain"))
    assert (asked.kernel_set, asked.clusters) == ("plain", 1)
    with pytest.raises(DeviceFailed, match="none at all"):
        choose_kernels(plain, LoadOptions(model=TINY, kernels="fused"))


def test_adapter_that_is_not_there() -> None:
    options = LoadOptions(model=TINY, adapter="no such adapter")
    with pytest.raises(DeviceFailed, match='No adapter is called "no such adapter"'):
        load_model(options, lambda progress: None, never)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_cancelling_frees_the_device(share: float, starter_path: Path, opened: list[Gpu]) -> None:
    """At the first window, halfway and while kernels warm up; then the next model loads and answers."""
    seen: list[LoadProgress] = []

    def unwanted() -> bool:
        return seen[-1].done_bytes >= share * max(1, seen[-1].total_bytes)

    with pytest.raises(LoadCancelled):
        load_model(LoadOptions(model=starter_path, context=512), seen.append, unwanted)
    assert [gpu.allocated_bytes for gpu in opened] == [0]
    assert opened[0].peak_bytes > 0
    assert {event.stage for event in seen} >= ({"Preparing kernels"} if share == 1.0 else {"Reading"})
    model = load_quietly(TINY)
    try:
        assert len(score(table_of(model), [1, 2, 3])) == 3
    finally:
        model.table.close()


def test_closing_frees_the_device(opened: list[Gpu]) -> None:
    model = load_quietly(TINY)
    assert opened[0].allocated_bytes > model.weight_bytes
    model.table.close()
    model.table.close()
    assert opened[0].allocated_bytes == 0


def test_shapes_that_no_kernel_takes(opened: list[Gpu]) -> None:
    with pytest.raises(UnsupportedArchitecture, match="heads of 4 elements"):
        load_quietly(DATA / "gguf_broken" / "valid_control.gguf")
    assert sum(gpu.allocated_bytes for gpu in opened) == 0


MEASURE = """
import sys
from pathlib import Path
from engine import loader
from engine.loader import load_model
from engine.loading import LoadOptions

def private_bytes():
    # Not the mapped model file's. A software adapter's buffers are in here, as far as they have been written.
    lines = open("/proc/self/smaps_rollup").read().splitlines()[1:]
    return 1024 * int(dict(line.split(":") for line in lines)["Anonymous"].split()[0])

opened = []
open_gpu = loader.open_gpu
loader.open_gpu = lambda name: opened.append(open_gpu(name)) or opened[-1]

def load(progress):
    return load_model(LoadOptions(model=Path(sys.argv[1]), context=512), progress, lambda: False)

# Compilers, drivers and libraries are all in memory before anything is counted.
load(lambda event: None).table.close()
before = private_bytes()
events, beyond = 0, []

def measure(event):
    global events
    events += 1
    if events % 5 == 0 or event.stage != "Loading weights":
        beyond.append(private_bytes() - before - (opened[-1].allocated_bytes if len(opened) > 1 else 0))

load(measure).table.close()
print(max(beyond), len(beyond))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_while_loading(starter_path: Path) -> None:
    """Beyond the device's own buffers, a load holds windows of the file and never a copy of it."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(starter_path)],
        check=True,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    peak, samples = map(int, done.stdout.split())
    assert samples > 20
    assert peak <= (64 + 16) * MIB < starter_path.stat().st_size

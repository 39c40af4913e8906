"""The loader: what it splices, what it refuses, and that every shipped kernel passes in every variant."""

from collections.abc import Mapping
from importlib import resources
from itertools import product

import pytest

from shaders.device import Gpu
from shaders.errors import SourceError
from shaders.kernel import Kernel, KernelCache
from shaders.source import Binding, ShaderSource, flatten, load_source
from tests.shaders.harness import BLOCKS

HEADER = """\
// double: y = x * FACTOR
// binding   shape  uniform     sizes
// binding   x      read        [n] f32
// binding   y      read_write  [n] f32
// override  FACTOR  what to multiply by
// slot      step    what one element becomes
"""
BODY = """\
override FACTOR: f32 = 2.0;

@group(0) @binding(0) var<uniform> shape: vec4u;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

//!include <step>
//!include "common/size.wgsl"

@compute @workgroup_size(64, 1, 1)
fn main(@builtin(global_invocation_id) id: vec3u) {
    if (id.x < size()) {
        y[id.x] = one_step(x[id.x]);
    }
}
"""
FILES = {
    "double.wgsl": HEADER + BODY,
    "common/times.wgsl": '//!include "common/size.wgsl"\n\nfn one_step(v: f32) -> f32 {\n    return v * FACTOR;\n}\n',
    "common/size.wgsl": "fn size() -> u32 {\n    return shape.x;\n}\n",
}
SLOTS = {"step": "common/times.wgsl"}
SHAPE_LINE = "// binding   shape  uniform     sizes\n"
X_LINE = "// binding   x      read        [n] f32\n"

WORDS = "common/words_narrow.wgsl"


def build(changes: Mapping[str, str] | None = None, slots: Mapping[str, str] = SLOTS) -> ShaderSource:
    files = FILES | dict(changes or {})

    def read(file: str) -> str:
        if file not in files:
            raise SourceError(f"{file}: no such shader file")
        return files[file]

    return flatten("double.wgsl", read, tuple(sorted(slots.items())))


def changed(old: str, new: str, file: str = "double.wgsl") -> Mapping[str, str]:
    assert old in FILES[file]
    return {file: FILES[file].replace(old, new)}


def test_splices_each_file_once() -> None:
    source = build()
    assert source.code.count("fn size()") == 1
    assert source.code.count("fn one_step(") == 1
    assert "//!" not in source.code
    assert source.bindings == (Binding("shape", "uniform"), Binding("x", "read"), Binding("y", "read_write"))
    assert source.overrides == {"FACTOR"}


def test_a_file_that_includes_itself_is_spliced_once() -> None:
    source = build(changed("fn size", '//!include "common/size.wgsl"\nfn size', "common/size.wgsl"))
    assert source.code.count("fn size()") == 1


def test_every_line_knows_where_it_came_from() -> None:
    source = build()
    lines = source.code.splitlines()
    assert len(lines) == len(source.lines)
    for number, line in enumerate(lines, 1):
        file, at = source.locate(number).split(":")
        assert FILES[file].splitlines()[int(at) - 1] == line
    assert source.locate(10_000) == source.locate(len(lines))
    assert source.locate(0) == "double.wgsl:1"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (X_LINE, ""),
        ("// binding   x      read    ", "// binding   z      read    "),
        ("// binding   x      read    ", "// binding   x      read_write  "),
        ("read_write  [n] f32\n", "read_write  [n] f32\n// binding   w      read        more\n"),
        (f"{SHAPE_LINE}{X_LINE}", f"{X_LINE}{SHAPE_LINE}"),
        ("var<storage, read_write> y", "var<storage, read> y"),
    ],
    ids=["one missing", "another name", "another access", "one too many", "another order", "code changed"],
)
def test_refuses_a_header_with_other_bindings(old: str, new: str) -> None:
    with pytest.raises(SourceError, match=r"^double\.wgsl:1: the header names the bindings"):
        build(changed(old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [("// override  FACTOR  what to multiply by\n", ""), ("override FACTOR: f32 = 2.0;", "const FACTOR: f32 = 2.0;")],
)
def test_refuses_a_header_with_other_overrides(old: str, new: str) -> None:
    with pytest.raises(SourceError, match=r"^double\.wgsl:1: the header names the overrides"):
        build(changed(old, new))


def test_refuses_slots_that_the_header_does_not_name() -> None:
    with pytest.raises(SourceError, match=r"^double\.wgsl:1: the header names the slots"):
        build(changed("// slot      step    what one element becomes\n", ""))
    with pytest.raises(SourceError, match=r"^double\.wgsl:1: the header names the slots \['step'\], given are"):
        build(slots=SLOTS | {"other": "common/size.wgsl"})


def test_refuses_an_empty_slot_where_it_stands() -> None:
    line = FILES["double.wgsl"].splitlines().index("//!include <step>") + 1
    with pytest.raises(SourceError, match=rf"^double\.wgsl:{line}: nothing fills the slot <step>"):
        build(slots={})


def test_refuses_a_file_that_does_not_exist() -> None:
    with pytest.raises(SourceError, match=r"^common/nowhere\.wgsl: no such shader file"):
        build(changed('"common/size.wgsl"', '"common/nowhere.wgsl"'))
    with pytest.raises(SourceError, match=r"^nowhere\.wgsl: no such shader file"):
        load_source("nowhere")
    with pytest.raises(SourceError, match=r"^common/nowhere\.wgsl: no such shader file"):
        load_source("embed", {"words": WORDS, "weights": "common/nowhere.wgsl"})


@pytest.mark.parametrize("line", ["//!include common/size.wgsl", "//!import <step>", "//!include <two words>", "//!"])
def test_refuses_directives_it_cannot_read(line: str) -> None:
    with pytest.raises(SourceError, match=r"^common/size\.wgsl:1: cannot read this directive"):
        build({"common/size.wgsl": f"{line}\n{FILES['common/size.wgsl']}"})


@pytest.mark.parametrize(
    "bare", ["var a: u32;", "var a: array<vec4f, 8>;", "var<function> a: f32;", "var a: u32; // later"]
)
def test_refuses_variables_without_an_initializer(bare: str) -> None:
    text = f"fn size() -> u32 {{\n    {bare}\n    return shape.x;\n}}\n"
    with pytest.raises(SourceError, match=r"^common/size\.wgsl:2: give this variable an initializer"):
        build({"common/size.wgsl": text})


def test_takes_variables_with_one_and_those_of_the_module() -> None:
    text = (
        "var<private> p: u32;\nvar<workgroup> w: array<f32, 64>;\n"
        "fn size() -> u32 {\n    var a = shape.x;\n    var b: u32 = a;\n    return b;\n}\n"
    )
    assert "var<private> p: u32;" in build({"common/size.wgsl": text}).code


def test_refuses_bindings_out_of_order_or_over_two_lines() -> None:
    with pytest.raises(SourceError, match=r"^double\.wgsl:10: binding 2 stands where 1 is due"):
        build(changed("@binding(1) var<storage, read> x", "@binding(2) var<storage, read> x"))
    with pytest.raises(SourceError, match=r"^double\.wgsl:10: a binding is one line"):
        build(changed("@group(0) @binding(1) var", "@group(0) @binding(1)\nvar"))


def test_unknown_overrides_are_refused(gpu: Gpu, kernels: KernelCache) -> None:
    with pytest.raises(SourceError, match=r"^double\.wgsl:1: has no override called OTHER"):
        Kernel(gpu, build(), {"FACTOR": 3.0, "OTHER": 1})
    with pytest.raises(SourceError, match=r"^add\.wgsl:1: has no override called CLUSTERS"):
        kernels.get("add", overrides={"CLUSTERS": 4})


@pytest.mark.parametrize(
    ("old", "new", "file", "line"),
    [
        ("return v * FACTOR;", "return v * MISSING;", "common/times.wgsl", 4),
        ("return shape.x;", "return shape.x", "common/size.wgsl", 3),
        ("y[id.x] = one_step(x[id.x]);", "y[id.x] = one_step(id.x);", "double.wgsl", 19),
    ],
    ids=["unknown name", "syntax", "type"],
)
def test_compile_errors_start_with_file_and_line(gpu: Gpu, old: str, new: str, file: str, line: int) -> None:
    with pytest.raises(SourceError) as caught:
        Kernel(gpu, build(changed(old, new, file)), {})
    assert str(caught.value).startswith(f"{file}:{line}:"), str(caught.value)[:300]


def test_each_variant_is_compiled_once(kernels: KernelCache) -> None:
    slots = {"words": WORDS, "weights": "common/weights_f32.wgsl"}
    assert kernels.get("embed", slots) is kernels.get("embed", dict(slots))
    assert kernels.get("embed", slots) is not kernels.get("embed", slots | {"weights": "common/weights_f16.wgsl"})


SHADERS = resources.files("shaders").joinpath("wgsl")
CHOICES = {
    "words": ["common/words_narrow.wgsl", "common/words_wide.wgsl"],
    "weights": [f"common/weights_{name.lower()}.wgsl" for name in BLOCKS],
    "tile": ["common/tile1.wgsl", "common/tile8.wgsl"],
    "kv_write": ["common/kv_write_f16.wgsl", "common/kv_write_f32.wgsl"],
    "kv_read": ["common/kv_read_f16.wgsl", "common/kv_read_f32.wgsl"],
    "reach": ["common/reach_whole.wgsl", "common/reach_window.wgsl"],
    "lanes": ["common/lanes_subgroup.wgsl", "common/lanes_workgroup.wgsl"],
    "raw_type": [f"common/raw_{name}.wgsl" for name in ("f32", "half", "q8_0", "q4_0", "q4_1")],
}


def shipped() -> list[tuple[str, dict[str, str]]]:
    """Every kernel with every way to fill its slots."""
    found = []
    for path in sorted(SHADERS.iterdir(), key=lambda path: path.name):
        if path.name.endswith(".wgsl"):
            lines = path.read_text(encoding="utf-8").splitlines()
            names = [line.split()[2] for line in lines if line.startswith("// slot")]
            for files in product(*(CHOICES[name] for name in names)):
                found.append((path.name.removesuffix(".wgsl"), dict(zip(names, files, strict=True))))
    return found


@pytest.mark.parametrize("name", sorted({name for name, _ in shipped()}))
def test_every_variant_of_a_shipped_kernel_is_valid(gpu: Gpu, name: str) -> None:
    for slots in (slots for kernel, slots in shipped() if kernel == name):
        source = load_source(name, slots)
        assert source.bindings, slots
        try:
            gpu.device.create_shader_module(label=name, code=source.code)
        except Exception as error:
            raise AssertionError(f"{name} with {slots}: {error}") from error


def test_no_shipped_file_lies_unused() -> None:
    used = {file for name, slots in shipped() for file, _ in load_source(name, slots).lines}
    common = {f"common/{path.name}" for path in SHADERS.joinpath("common").iterdir()}
    kernels = {path.name for path in SHADERS.iterdir() if path.name.endswith(".wgsl")}
    assert common | kernels == used

"""The kernels' digest: comments and layout don't count, everything else does."""

from importlib import resources
from pathlib import Path

import pytest

from shaders import numerics
from shaders.numerics import essence, numerics_digest

KERNEL = """// add: y = a + b
//!include "common/step.wgsl"
fn main(i: u32) -> f32 {
    /* a comment /* inside // another */ */ let y = a[i]+b[i]; // the sum
    return y*1.5;
}
"""
SAME = [
    KERNEL.replace("// the sum", "// anything"),
    KERNEL.replace("a[i]+b[i]", "a [ i ]\n  +   b[i]"),
    KERNEL.replace("    return", "\treturn").replace("\n", "\n\n"),
    KERNEL.replace("/* a comment /* inside // another */ */", ""),
    KERNEL.replace("// add: y = a + b\n", ""),
]
OTHER = [
    KERNEL.replace("a[i]+b[i]", "a[i]-b[i]"),
    KERNEL.replace("1.5", "1.25"),
    KERNEL.replace("step.wgsl", "heads.wgsl"),
    KERNEL.replace("//!include", "// !include"),
    KERNEL.replace("return y", "returny"),
    KERNEL.replace("// the sum", "// the sum\u2028 y = 0.0;"),
    KERNEL.replace("// another */ */", "// another */"),
]


@pytest.mark.parametrize("text", SAME)
def test_comments_and_layout_do_not_count(text: str) -> None:
    assert text != KERNEL and essence(text) == essence(KERNEL)


@pytest.mark.parametrize("text", OTHER)
def test_everything_else_counts(text: str) -> None:
    assert essence(text) != essence(KERNEL)


def copy_of_kernels(folder: Path) -> Path:
    source = Path(str(resources.files("shaders"))) / "wgsl"
    for file in source.rglob("*.wgsl"):
        target = folder / "wgsl" / file.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    return folder / "wgsl"


def test_the_digest_is_over_every_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uncached = numerics_digest.__wrapped__
    first = numerics_digest()
    kernels = copy_of_kernels(tmp_path)
    monkeypatch.setattr(resources, "files", lambda _package: tmp_path)
    assert uncached() == first and len(first) == 16
    silu = kernels / "common" / "silu.wgsl"
    text = silu.read_text(encoding="utf-8")
    silu.write_text(f"// said anew\n{text}", encoding="utf-8")
    assert uncached() == first
    silu.write_text(f"{text}\nconst more = 1;\n", encoding="utf-8")
    assert uncached() != first
    silu.write_text(text, encoding="utf-8")
    silu.rename(silu.with_name("sily.wgsl"))
    assert uncached() != first
    silu.with_name("sily.wgsl").rename(silu)
    assert uncached() == first
    monkeypatch.setattr(numerics, "NUMERICS_VERSION", numerics.NUMERICS_VERSION + 1)
    assert uncached() != first

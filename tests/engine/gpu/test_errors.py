"""What a person sees when a real load or a real request cannot be: one line, exit status 1, and no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.gpu.conftest import DATA

TINY = DATA / "gguf_llama" / "tiny-F16.gguf"
ROOT = DATA.parents[1]


def generate(home: Path, *argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "desktop", "generate", *argv],
        check=False,
        cwd=ROOT,
        env={**os.environ, "INGLENOOK_HOME": str(home), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
    )


def the_line(done: subprocess.CompletedProcess[str], *, loaded: bool = False) -> str:
    """The error. Only a load that succeeded may have said something before it: how far it was, and on what it runs."""
    assert (done.returncode, done.stdout) == (1, "")
    assert "Traceback" not in done.stderr
    assert "bug in Inglenook" not in done.stderr
    *before, last = done.stderr.splitlines()
    if loaded:
        before = [line for line in before if "No usable GPU" not in line and not line.startswith("Loading weights: ")]
        before = [line for line in before if not line.startswith("Preparing kernels: ")]
        before = [line for line in before if not line.startswith("Memory: about ")]
    assert before == []
    assert last.startswith("inglenook: ")
    assert last.endswith(".")
    return last


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="drivers are named by files on Linux")
def test_no_driver(tmp_path: Path) -> None:
    absent = str(tmp_path / "absent.json")
    done = generate(tmp_path, str(TINY), "--prompt", "x", VK_DRIVER_FILES=absent, VK_ICD_FILENAMES=absent)
    line = the_line(done)
    assert "No graphics adapter" in line
    assert "mesa-vulkan-drivers" in line


def test_wrong_path(tmp_path: Path) -> None:
    line = the_line(generate(tmp_path, str(tmp_path / "absent.gguf"), "--prompt", "x"))
    assert "absent.gguf" in line


def test_folder_without_a_model(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    line = the_line(generate(tmp_path, str(folder), "--prompt", "x"))
    assert "no model in the folder" in line
    assert "photos" in line


def test_empty_file(tmp_path: Path) -> None:
    file = tmp_path / "begun.gguf"
    file.touch()
    line = the_line(generate(tmp_path, str(file), "--prompt", "x"))
    assert "begun.gguf is empty" in line


def test_file_that_stops_in_the_middle(tmp_path: Path) -> None:
    file = tmp_path / "half.gguf"
    file.write_bytes(TINY.read_bytes()[: TINY.stat().st_size // 2])
    line = the_line(generate(tmp_path, str(file), "--prompt", "x"))
    assert "half.gguf" in line


def test_context_beyond_the_model(tmp_path: Path) -> None:
    line = the_line(generate(tmp_path, str(TINY), "--prompt", "x", "--context", "513"))
    assert "513" in line
    assert "512" in line


def test_prompt_longer_than_the_context(tmp_path: Path) -> None:
    line = the_line(generate(tmp_path, str(TINY), "--prompt", "abcdefgh" * 8, "--context", "16"), loaded=True)
    assert "This prompt has " in line
    assert "the context holds 16" in line


def test_an_answer_for_comparison(tmp_path: Path) -> None:
    """The same command where nothing is wrong."""
    done = generate(tmp_path, str(TINY), "--prompt", "abc", "--context", "16", "--max-tokens", "3", "--ignore-eos")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr

"""What a Linux system lacks and what is done about it, without asking the real system."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from installer import linux
from installer.process import Log, SetupError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system where no library loads and no driver is known."""
    monkeypatch.setattr(linux, "loads", lambda _: False)
    monkeypatch.setattr(linux, "has_vulkan_driver", lambda _: False)


def only(*present: str) -> Callable[[str], str | None]:
    return lambda name: f"/usr/bin/{name}" if name in present else None


def test_apt_line() -> None:
    assert linux.apt_line(["libegl1", "xvfb"], sudo=True) == (
        "sudo apt-get update && sudo apt-get install -y --no-install-recommends libegl1 xvfb"
    )
    assert linux.apt_line(["x"], sudo=False) == "apt-get update && apt-get install -y --no-install-recommends x"


@pytest.mark.usefixtures("bare")
def test_a_terminal_needs_no_window_libraries() -> None:
    assert set(linux.missing({}, window=False).values()) == {"libvulkan1", "mesa-vulkan-drivers"}
    assert {"libegl1", "libxcb-cursor0", "libxcb-icccm4"} < set(linux.missing({}, window=True).values())


@pytest.mark.usefixtures("bare")
def test_a_python_without_ensurepip_asks_for_its_own_venv_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linux.importlib.util, "find_spec", lambda _: None)
    assert linux.missing({}, window=False)["venv with pip"] == f"python3.{sys.version_info.minor}-venv"


def test_driver_manifests_count_only_with_their_library(tmp_path: Path) -> None:
    folder = tmp_path / "vulkan" / "icd.d"
    folder.mkdir(parents=True)
    environ = {"HOME": str(tmp_path), "XDG_DATA_DIRS": f"/nowhere:{tmp_path}"}
    manifest = folder / "soft.json"
    manifest.write_text(json.dumps({"ICD": {"library_path": "../libsoft.so"}}))
    assert manifest in linux.driver_manifests(environ)
    named = {"VK_DRIVER_FILES": str(manifest)}
    assert linux.driver_manifests(named) == [manifest]
    assert linux.driver_manifests({"VK_ICD_FILENAMES": str(folder)}) == [manifest]
    assert not linux.has_vulkan_driver(named)
    (folder.parent / "libsoft.so").touch()
    assert linux.has_vulkan_driver(named)
    manifest.write_text("not json")
    assert not linux.has_vulkan_driver(named)
    assert not linux.has_vulkan_driver({"VK_DRIVER_FILES": str(tmp_path / "absent.json")})


@pytest.mark.usefixtures("bare")
def test_without_the_right_to_install_the_exact_line_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linux.shutil, "which", only("apt-get", "sudo"))
    monkeypatch.setattr(linux, "install_prefix", lambda: None)
    with pytest.raises(SetupError, match=r"sudo apt-get update && sudo apt-get install .* libvulkan1 mesa-vulkan-driv"):
        linux.provide({}, Log(tmp_path / "log"), print, window=False)


@pytest.mark.usefixtures("bare")
def test_without_apt_libraries_are_told_and_the_setup_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linux.shutil, "which", only())
    said: list[str] = []
    linux.provide({}, Log(tmp_path / "log"), said.append, window=False)
    assert "libvulkan.so.1" in said[0] and "apt" not in said[0]
    monkeypatch.setattr(linux.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(SetupError, match="venv with pip"):
        linux.provide({}, Log(tmp_path / "log"), said.append, window=False)


def test_install_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linux.shutil, "which", only("apt-get"))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert linux.install_prefix() == ["env", "DEBIAN_FRONTEND=noninteractive"]
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert linux.install_prefix() is None
    monkeypatch.setattr(linux.shutil, "which", only())
    assert linux.install_prefix() is None


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("lists", [True, False])
def test_apt_updates_only_when_it_has_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lists: bool) -> None:
    record = tmp_path / "record"
    script = tmp_path / "apt"
    script.write_text(f'#!/bin/sh\necho "$2" >> {record}\n')
    script.chmod(0o755)
    if lists:
        (tmp_path / "archive_Packages").touch()
    monkeypatch.setattr(linux, "APT_LISTS", tmp_path)
    monkeypatch.setattr(linux.shutil, "which", only("apt-get"))
    monkeypatch.setattr(linux, "install_prefix", lambda: [str(script)])
    said: list[str] = []
    log = Log(tmp_path / "log")
    linux.provide({}, log, said.append, window=False)
    assert record.read_text().split() == (["install"] if lists else ["update", "install"])
    assert said[0] == "installing system packages: libvulkan1 mesa-vulkan-drivers" and "still not found" in said[-1]
    script.write_text('#!/bin/sh\necho "E: Unable to locate package x."\nexit 100\n')
    with pytest.raises(SetupError, match=r"\(Unable to locate package x\)\. Run as an administrator: apt-get update"):
        linux.provide({}, log, said.append, window=False)
    log.close()

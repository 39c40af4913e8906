"""The stamp, the reasons to remake `.venv`, and what pip's output becomes."""

import json
import sys
from pathlib import Path

import pytest

from installer import environment as venv
from installer.environment import Environment
from installer.pip_output import Progress, explain
from installer.process import Log, SetupError

THIS = sys.version_info[:2]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    """A project folder with a `.venv` that claims to run this Python."""
    (tmp_path / "installer").mkdir()
    (tmp_path / "installer" / "requirements.lock").write_text("a==1\n")
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "pyvenv.cfg").write_text(f"home = /usr/bin\nversion = {THIS[0]}.{THIS[1]}.1\n")
    monkeypatch.setattr(venv, "python_version", lambda _: THIS)
    return Environment(root=tmp_path)


def test_a_stamp_makes_the_setup_current(place: Environment) -> None:
    assert not venv.is_current(place)
    venv.write_stamp(place)
    assert venv.is_current(place)
    assert [path.name for path in place.venv.iterdir() if "new" in path.suffix] == []


@pytest.mark.parametrize("changed", ["installer/requirements.lock", "pyproject.toml"])
def test_a_changed_input_makes_it_stale(place: Environment, changed: str) -> None:
    venv.write_stamp(place)
    path = place.root / changed
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert venv.is_current(place)  # line ends are git's affair
    path.write_text("something else\n")
    assert not venv.is_current(place)
    assert venv.reason_to_remake(place) is None  # installing into it is enough


def test_reasons_to_remake(place: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    assert venv.reason_to_remake(place) is None
    place.mark.touch()
    assert venv.reason_to_remake(place) == "its last setup was interrupted"
    place.mark.unlink()
    venv.write_stamp(place)
    stamp = json.loads(place.stamp.read_text())
    place.stamp.write_text(json.dumps(stamp | {"folder": "/elsewhere"}))
    assert venv.reason_to_remake(place) == "it was made in another folder"
    (place.venv / "pyvenv.cfg").write_text("version_info = 3.4.0\n")
    assert "it belongs to Python" in str(venv.reason_to_remake(place))
    monkeypatch.setattr(venv, "python_version", lambda _: None)
    assert venv.reason_to_remake(place) == "its Python does not start"
    assert not venv.is_current(place)


def test_a_folder_that_is_no_environment_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "letters.txt").write_text("mine")
    with pytest.raises(SetupError, match="not a virtual environment"):
        venv.make_venv(Environment(root=tmp_path), Log(tmp_path / "log"), print)
    assert (tmp_path / ".venv" / "letters.txt").exists()


def test_paths_of_programs(tmp_path: Path) -> None:
    assert Environment(root=tmp_path, windows=True).program("inglenook") == tmp_path / ".venv/Scripts/inglenook.exe"
    assert Environment(root=tmp_path, windows=False).program("inglenook") == tmp_path / ".venv/bin/inglenook"


def test_children_are_not_led_out_of_the_environment() -> None:
    kept = venv.child_variables(
        {"PYTHONPATH": "/x", "PIP_TARGET": "/y", "PIP_USER": "1", "PIP_CERT": "c", "HOME": "/h"}
    )
    assert not kept.keys() & {"PYTHONPATH", "PIP_TARGET", "PIP_USER"}
    assert kept["PIP_CERT"] == "c" and kept["HOME"] == "/h"


def test_progress_counts_packages_of_this_system() -> None:
    said: list[str] = []
    began: list[bool] = []
    progress = Progress(13, said.append, lambda: began.append(True))
    progress.line("Ignoring colorama: markers 'sys_platform == \"win32\"' don't match your environment")
    for number in range(10):
        progress.line(f"Collecting package-{number}==1.{number} (from -r requirements.lock (line 3))")
        progress.line("  Downloading package.whl (12 kB)")
    progress.line("Collecting big==2.0")
    progress.line("  Downloading big-2.0-py3-none-any.whl (95.7 MB)")
    progress.quiet(20.4)
    progress.line("Requirement already satisfied: last==1 in ./lib (1)")
    assert not began
    progress.line("Installing collected packages: a, b, c")
    assert began == [True]
    assert said == [
        "10 of 12: package-9",
        "11 of 12: fetching big, 95.7 MB",
        "still at it after 20 s: big, 95.7 MB",
        "12 of 12: last",
        "unpacking 3 packages",
    ]


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("WARNING: Retrying (...) after connection broken by 'NewConnectionError(...)'", "could not be reached"),
        ("... SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] ...", "Set PIP_CERT"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.", "its hash differs"),
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "disk is full"),
        ("ERROR: No matching distribution found for wgpu==0.32.0", "no wgpu==0.32.0 for this system"),
        ("ERROR: Could not install: [Errno 13] Permission denied: 'x'", "Close Inglenook"),
        ("ERROR: Something new.", "failed: Something new. Run"),
        ("no cause at all", "without naming a cause"),
    ],
)
def test_failures_of_pip_become_one_line(line: str, cause: str) -> None:
    told = explain(["Collecting a", line])
    assert cause in told and "\n" not in told and told.endswith(".")

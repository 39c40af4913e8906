"""Fingerprints: any byte and any setting counts, and an untouched file is read once."""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.tiers import file_digest
from engine.tiers.file_digest import digest_files
from engine.tiers.fingerprint import FINGERPRINT_BYTES, fingerprint
from engine.tiers.notes import Notes
from models.library import parts

PIECE = 1000


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_digest, "PIECE_BYTES", PIECE)
    monkeypatch.setattr(file_digest, "_READ_BYTES", 300)


@pytest.fixture
def notes(tmp_path: Path) -> Iterator[Notes]:
    opened = Notes(tmp_path / "cache")
    yield opened
    opened.close()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Paths whose content was hashed."""
    found: list[Path] = []
    digest_content = file_digest._digest_content

    def counted(path: Path, *rest: object) -> bytes | None:
        found.append(path)
        return digest_content(path, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(file_digest, "_digest_content", counted)
    return found


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if files that were just written lay there for some seconds."""
    monkeypatch.setattr(file_digest, "_SETTLED_NS", -1_000_000_000)


def model(tmp_path: Path, size: int = 3500) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(bytes(i * 7 % 251 for i in range(size)))
    return path


def digest(path: Path, notes: Notes | None = None) -> bytes:
    found = digest_files([path], notes)
    assert found is not None
    return found[0].digest


def flip(path: Path, at: int) -> None:
    """Change one byte, and put back every time that a program can put back."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(at)
        [byte] = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)


@pytest.mark.parametrize("size", [0, 1, 299, 300, 301, 999, 1000, 1001, 3500])
def test_any_byte_counts(size: int, tmp_path: Path) -> None:
    path = model(tmp_path, size)
    seen = {digest(path)}
    places = [at for at in (0, 299, 300, 999, 1000, 1999, size - 1) if 0 <= at < size]
    for at in dict.fromkeys(places):
        flip(path, at)
        seen.add(digest(path))
    with path.open("ab") as file:
        file.write(b"\0")
    seen.add(digest(path))
    assert len(seen) == 2 + len(set(places))


def test_pieces_that_change_places_are_another_file(tmp_path: Path) -> None:
    path = model(tmp_path, 2 * PIECE)
    before, content = digest(path), path.read_bytes()
    path.write_bytes(content[PIECE:] + content[:PIECE])
    assert digest(path) != before


def test_an_untouched_file_is_read_once(tmp_path: Path, notes: Notes, reads: list[Path], settled: None) -> None:
    path = model(tmp_path)
    first = digest(path, notes)
    assert digest(path, notes) == first
    notes.close()
    again = Notes(tmp_path / "cache")
    assert digest(path, again) == first
    assert reads == [path]
    again.close()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps no time that a program can't set")
def test_a_restored_time_hides_nothing(tmp_path: Path, notes: Notes, settled: None) -> None:
    path = model(tmp_path)
    first = digest(path, notes)
    time.sleep(0.05)  # beyond the clock's step of file systems
    flip(path, 1234)
    assert digest(path, notes) != first


def test_a_file_of_just_now_is_not_remembered(tmp_path: Path, notes: Notes, reads: list[Path]) -> None:
    path = model(tmp_path)
    assert digest(path, notes) == digest(path, notes)
    assert len(reads) == 2
    os.utime(path, (1, 1))  # the time of the last change to the file's attributes is still of now
    digest(path, notes)
    digest(path, notes)
    assert len(reads) == (3 if sys.platform == "win32" else 4)


def test_a_file_that_changes_meanwhile_is_not_remembered(
    tmp_path: Path, notes: Notes, settled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = model(tmp_path)
    plain = digest(path)
    digest_content = file_digest._digest_content

    def disturbed(path: Path, *rest: object) -> bytes | None:
        try:
            return digest_content(path, *rest)  # type: ignore[arg-type]
        finally:
            path.write_bytes(b"another model")

    monkeypatch.setattr(file_digest, "_digest_content", disturbed)
    found = digest_files([path], notes)
    assert found is not None and found[0].digest == plain and not found[0].unchanged
    monkeypatch.undo()
    assert digest(path, notes) != plain


def test_cancelled_and_absent(tmp_path: Path, notes: Notes, settled: None) -> None:
    path = model(tmp_path)
    calls = iter(range(1000))
    assert digest_files([path], notes, lambda: next(calls) > 3) is None
    assert next(calls) < 20, "no thread goes on after it"
    assert digest(path, notes) == digest(path)
    with pytest.raises(OSError):
        digest_files([path, tmp_path / "absent"], notes)


def test_notes_that_fail_cost_only_the_memory(tmp_path: Path) -> None:
    path = model(tmp_path)
    (tmp_path / "cache").write_text("no folder")
    notes = Notes(tmp_path / "cache")
    assert digest(path, notes) == digest(path)


def test_all_parts_of_a_model_count(tmp_path: Path) -> None:
    names = [f"big-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    for name in (*names, "big.gguf", "big-00001-of-00002.gguf"):
        (tmp_path / name).write_bytes(name.encode())
    for name in names:
        assert parts(tmp_path / name) == [tmp_path / part for part in names]
    assert parts(tmp_path / "big.gguf") == [tmp_path / "big.gguf"]
    found = digest_files(parts(tmp_path / names[0]))
    assert found is not None and len({part.digest for part in found}) == 3


FACTS = {
    "files": [b"1" * 32],
    "kv_type": "f16",
    "kernel_set": "fused",
    "clusters": 4,
    "adapter": "A card",
    "backend": "Vulkan",
    "page_layout": 1,
    "settings": (),
    "numerics": b"n",
}
OTHERS = {
    "files": [b"2" * 32],
    "kv_type": "f32",
    "kernel_set": "plain",
    "clusters": 1,
    "adapter": "Another",
    "backend": "Metal",
    "page_layout": 2,
    "settings": (None,),
    "numerics": None,
}


def test_each_fact_counts() -> None:
    first = fingerprint(**FACTS)  # type: ignore[arg-type]
    assert len(first) == FINGERPRINT_BYTES and first == fingerprint(**FACTS)  # type: ignore[arg-type]
    seen = [first, *(fingerprint(**{**FACTS, name: other}) for name, other in OTHERS.items())]  # type: ignore[arg-type]
    seen += [fingerprint(**{**FACTS, "settings": settings}) for settings in ((1,), (1.5,), (True,), ("1",), (1, None))]  # type: ignore[arg-type]
    seen.append(fingerprint(**{**FACTS, "files": [b"1" * 16, b"1" * 16]}))  # type: ignore[arg-type]
    assert len(set(seen)) == len(seen)

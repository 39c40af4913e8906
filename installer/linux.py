"""What Linux must bring itself: a Vulkan loader and driver, the libraries behind the window, and venv's parts.

Owns the checks and, on Debian and its relatives, the apt-get line that cures them. Everything counts as present
when it loads, whatever package it came from, so other distributions are never asked for Debian's names.
"""

import ctypes
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from installer.process import Log, SetupError, run_logged

# library -> Debian package. Qt loads these at start and names the wrong one when any is missing.
WINDOW_LIBRARIES = {
    "libEGL.so.1": "libegl1",
    "libGL.so.1": "libgl1",
    "libgthread-2.0.so.0": "libglib2.0-0",
    "libdbus-1.so.3": "libdbus-1-3",
    "libfontconfig.so.1": "libfontconfig1",
    "libgssapi_krb5.so.2": "libgssapi-krb5-2",
    "libX11-xcb.so.1": "libx11-xcb1",
    "libxkbcommon.so.0": "libxkbcommon0",
    "libxkbcommon-x11.so.0": "libxkbcommon-x11-0",
    "libxcb-cursor.so.0": "libxcb-cursor0",
    "libxcb-icccm.so.4": "libxcb-icccm4",
    "libxcb-keysyms.so.1": "libxcb-keysyms1",
    "libxcb-image.so.0": "libxcb-image0",
    "libxcb-randr.so.0": "libxcb-randr0",
    "libxcb-render-util.so.0": "libxcb-render-util0",
    "libxcb-shape.so.0": "libxcb-shape0",
    "libxcb-sync.so.1": "libxcb-sync1",
    "libxcb-xfixes.so.0": "libxcb-xfixes0",
    "libxcb-xkb.so.1": "libxcb-xkb1",
}
VULKAN_LOADER = "libvulkan.so.1"
VULKAN_PACKAGES = {VULKAN_LOADER: "libvulkan1", "a Vulkan driver": "mesa-vulkan-drivers"}
APT_LISTS = Path("/var/lib/apt/lists")


def loads(library: str) -> bool:
    """Whether the system's loader finds `library`."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def driver_manifests(environ: Mapping[str, str]) -> list[Path]:
    """Every Vulkan driver manifest that the loader would look at (Vulkan-Loader's LoaderDriverInterface.md)."""
    for variable in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES"):
        if environ.get(variable):
            return _expand(environ[variable])
    home = Path(environ.get("HOME") or "/root")
    folders = [
        environ.get("XDG_CONFIG_HOME") or str(home / ".config"),
        environ.get("XDG_CONFIG_DIRS") or "/etc/xdg",
        "/usr/local/etc:/etc",
        environ.get("XDG_DATA_HOME") or str(home / ".local/share"),
        environ.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share",
    ]
    searched = ":".join(folders).split(":")
    found = _expand(environ.get("VK_ADD_DRIVER_FILES", ""))
    for folder in searched:
        found += sorted(Path(folder, "vulkan/icd.d").glob("*.json"))
    return found


def _expand(paths: str) -> list[Path]:
    """The manifests that a colon-separated list of files and folders names."""
    found: list[Path] = []
    for path in map(Path, filter(None, paths.split(":"))):
        found += sorted(path.glob("*.json")) if path.is_dir() else [path]
    return found


def has_vulkan_driver(environ: Mapping[str, str]) -> bool:
    """Whether any manifest names a library that is there; containers often carry a manifest alone."""
    return any(_library_exists(manifest) for manifest in driver_manifests(environ))


def _library_exists(manifest: Path) -> bool:
    try:
        library = str(json.loads(manifest.read_text(encoding="utf-8"))["ICD"]["library_path"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
    if "/" in library:  # relative to the manifest; not loaded, since a driver can take a third of a second
        return (manifest.parent / library).exists()
    return loads(library)


def missing(environ: Mapping[str, str], *, window: bool) -> dict[str, str]:
    """What is not there, as {library or part: Debian package}; `window` includes what Qt needs."""
    lacking: dict[str, str] = {}
    if importlib.util.find_spec("ensurepip") is None or importlib.util.find_spec("venv") is None:
        lacking["venv with pip"] = f"python3.{sys.version_info.minor}-venv"
    if not loads(VULKAN_LOADER):
        lacking[VULKAN_LOADER] = VULKAN_PACKAGES[VULKAN_LOADER]
    if not has_vulkan_driver(environ):
        lacking["a Vulkan driver"] = VULKAN_PACKAGES["a Vulkan driver"]
    if window:
        lacking |= {library: package for library, package in WINDOW_LIBRARIES.items() if not loads(library)}
    return lacking


def apt_line(packages: Sequence[str], *, sudo: bool) -> str:
    """The line for a person to run."""
    prefix = "sudo " if sudo else ""
    return f"{prefix}apt-get update && {prefix}apt-get install -y --no-install-recommends {' '.join(packages)}"


def install_prefix() -> list[str] | None:
    """What to put before apt-get so that it may install without asking anything; None where it may not."""
    if sys.platform != "linux" or shutil.which("apt-get") is None:
        return None
    noninteractive = ["env", "DEBIAN_FRONTEND=noninteractive"]
    if os.geteuid() == 0:
        return noninteractive
    if shutil.which("sudo") is None:
        return None
    asked = subprocess.run(["sudo", "-n", "true"], capture_output=True, stdin=subprocess.DEVNULL, check=False)
    return ["sudo", "-n", *noninteractive] if asked.returncode == 0 else None


def provide(environ: Mapping[str, str], log: Log, say: Callable[[str], None], *, window: bool) -> None:
    """Install what is missing, or raise SetupError with the exact line to run.

    Without apt-get only a missing venv stops the setup: the rest is said and left to the reader's package manager,
    because a library may lie where this check cannot see it.
    """
    lacking = missing(environ, window=window)
    if not lacking:
        return
    packages = sorted(set(lacking.values()))
    if shutil.which("apt-get") is None:
        names = ", ".join(lacking)
        if "venv with pip" in lacking:
            raise SetupError(
                f"This system lacks {names}. Install them with its package manager and run the same command again."
            )
        say(f"not found: {names}. If Inglenook does not start, install them with this system's package manager.")
        return
    prefix = install_prefix()
    if prefix is None:
        line = apt_line(packages, sudo=shutil.which("sudo") is not None)
        raise SetupError(f"System packages are missing. Run this as an administrator, then this command again: {line}")
    say(f"installing system packages: {' '.join(packages)}")
    _apt_install(prefix, packages, log, say)
    importlib.invalidate_caches()
    if still := missing(environ, window=window):
        say(f"still not found: {', '.join(still)}. Going on; `inglenook doctor` tells what works.")


def _apt_install(prefix: Sequence[str], packages: Sequence[str], log: Log, say: Callable[[str], None]) -> None:
    """Install, after an update where the lists are absent or too old to be served any more."""

    def apt(*words: str) -> tuple[str, ...] | None:
        ended = run_logged([*prefix, "apt-get", *words], log, on_quiet=lambda s: say(f"still at it after {s:.0f} s"))
        return None if ended.status == 0 else ended.lines

    install = ("install", "-y", "--no-install-recommends", *packages)
    if any(APT_LISTS.glob("*_Packages*")) and apt(*install) is None:
        return
    apt("update")
    failed = apt(*install)
    if failed is not None:
        causes = [line.removeprefix("E: ") for line in failed if line.startswith("E: ")]
        cause = causes[-1].rstrip(".") if causes else "no cause named"
        line = apt_line(packages, sudo=False)
        raise SetupError(f"apt-get could not install system packages ({cause}). Run as an administrator: {line}")

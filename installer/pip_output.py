"""What pip prints, condensed: progress as a few plain lines, failures as one line that a person can act on.

Works on lines of text alone and runs nothing. pip offers no machine-readable progress, so the shapes below are
the ones that its versions 23 to 26 print when their output is not a terminal.
"""

import re
from collections.abc import Callable, Sequence

_COLLECTING = re.compile(r"^(?:Collecting|Requirement already satisfied:) ([A-Za-z0-9._-]+?)(?:==|\s|$)")
_FETCHING = re.compile(r"^\s*Downloading \S+ \(([0-9.]+ [GM]B)\)")
_INSTALLING = "Installing collected packages:"
_TELL_EVERY = 10
_TELL_MEGABYTES = 20.0


class Progress:
    """Turns pip's lines into "17 of 57" lines; `total` is the number of entries in the lock."""

    def __init__(self, total: int, say: Callable[[str], None], on_install: Callable[[], None]) -> None:
        self._total = total
        self._say = say
        self._on_install = on_install
        self._done = 0
        self._doing = "looking for packages"

    def line(self, text: str) -> None:
        """Take one line of pip's output; calls `on_install` when pip begins to change the environment."""
        if text.startswith("Ignoring "):  # its marker names another system
            self._total -= 1
        elif found := _COLLECTING.match(text):
            self._done += 1
            self._doing = found[1]
            if self._done % _TELL_EVERY == 0 or self._done == self._total:
                self._say(f"{self._done} of {self._total}: {self._doing}")
        elif (found := _FETCHING.match(text)) and _megabytes(found[1]) >= _TELL_MEGABYTES:
            self._doing += f", {found[1]}"
            self._say(f"{self._done} of {self._total}: fetching {self._doing}")
        elif text.startswith(_INSTALLING):
            self._doing = "unpacking"
            self._say(f"unpacking {text.count(',') + 1} packages")
            self._on_install()

    def quiet(self, seconds: float) -> None:
        """Say that the work goes on although pip is silent; `seconds` since it began."""
        self._say(f"still at it after {seconds:.0f} s: {self._doing}")


def _megabytes(size: str) -> float:
    number, unit = size.split()
    return float(number) * (1000.0 if unit == "GB" else 1.0)


_OFFLINE = (
    "NewConnectionError",
    "ConnectTimeoutError",
    "ReadTimeoutError",
    "Read timed out",
    "Max retries exceeded",
    "Connection aborted",
    "Temporary failure in name resolution",
    "ProxyError",
)


def explain(lines: Sequence[str]) -> str:
    """One line with the cause and the way out, from the output of a pip that failed."""
    text = "\n".join(lines)
    if "DO NOT MATCH THE HASHES" in text:
        return (
            "A downloaded package is not the one that this version was tested with (its hash differs). "
            "Run the same command again; if that repeats, a proxy or mirror on the way changes files."
        )
    if "No space left on device" in text or "Errno 28" in text or "WinError 112" in text:
        return "The disk is full. Free about 1.5 GB (the temporary folder counts too) and run the same command again."
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return (
            "The certificate of the package index was refused, as behind a company's proxy. "
            "Set PIP_CERT to the file with its certificate and run the same command again."
        )
    if any(sign in text for sign in _OFFLINE):
        return (
            "The package index could not be reached. Check the network, or the proxy named in HTTPS_PROXY, "
            "and run the same command again; what was fetched already is kept."
        )
    if missing := re.search(r"No matching distribution found for (\S+)", text):
        return (
            f"The package index has no {missing[1]} for this system and Python. Inglenook needs a 64-bit Python 3.11 "
            "to 3.13 and Windows 10, macOS 13 or glibc 2.34, or newer; a mirror may also be behind."
        )
    if "Permission denied" in text or "WinError 5" in text or "WinError 32" in text:
        return "A file in .venv could not be replaced. Close Inglenook if it is open and run the same command again."
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    cause = errors[0].rstrip(".") if errors else "pip stopped without naming a cause"
    return f"Installing the packages failed: {cause}. Run the same command again."

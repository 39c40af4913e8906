"""The first bytes of a model file: either a GGUF version that we read, or a sentence about what the file is instead.

Does not read past the header. Called by the thread that opens the model.
"""

import mmap
import struct

from models.errors import CorruptFile, damaged, shown

HEADER_BYTES = 24
_VERSIONS = (2, 3)
_AGAIN = "Download the model again, as a GGUF file."
_CONVERT = "Get a GGUF version of the model."


def check_header(data: mmap.mmap, file_name: str) -> tuple[int, int]:
    """The number of tensors and of metadata entries that the header claims; both are unchecked claims.

    Raises CorruptFile where the file isn't GGUF of version 2 or 3 in little-endian order.
    """
    head = data[:512]
    if head[:4] != b"GGUF":
        raise CorruptFile(_what_it_is_instead(head, len(data), file_name))
    if len(head) < HEADER_BYTES:
        raise damaged(file_name, f"it ends after {len(head)} bytes, inside its header")
    version, num_tensors, num_entries = struct.unpack_from("<IQQ", head, 4)
    if version not in _VERSIONS:
        raise CorruptFile(_about_version(version, file_name))
    return num_tensors, num_entries


def _about_version(version: int, file_name: str) -> str:
    swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
    if swapped in (1, *_VERSIONS):
        return f"{file_name} is stored in big-endian byte order, for another kind of computer. Get the usual version."
    if version == 1:
        return f"{file_name} uses version 1 of the GGUF format, from 2023. Get a newer version of the model."
    return f"{file_name} uses version {version} of the GGUF format; Inglenook reads 2 and 3. {_AGAIN}"


def _what_it_is_instead(head: bytes, size: int, file_name: str) -> str:
    start = head.lstrip().lower()
    if head.startswith(b"PK\x03\x04"):
        return f"{file_name} is a zip archive, not a GGUF model. Unpack it and open the .gguf file inside."
    if start.startswith(b"version https://git-lfs"):
        return f"{file_name} is a Git LFS pointer: the few lines that stand for a file, not the file. {_AGAIN}"
    if start.startswith((b"<!doctype", b"<html", b"<?xml")):
        return f"{file_name} is a web page, most likely an error message saved by a download. {_AGAIN}"
    if _is_safetensors(head, size):
        return f"{file_name} is a safetensors file with another ending. Rename it, or get a GGUF version of the model."
    if start.startswith(b"{"):
        return f"{file_name} is a JSON text, most likely an error message saved by a download. {_AGAIN}"
    if head[:4] in (b"tjgg", b"fmgg", b"lmgg", b"algg"):
        return f"{file_name} is in a format from before GGUF, which Inglenook doesn't read. {_CONVERT}"
    if not any(head):
        return f"{file_name} begins with zeros, as an unfinished download does. {_AGAIN}"
    return f"{file_name} is not a GGUF file: it begins with {shown(head[:4].decode('latin-1'))}. {_AGAIN}"


def _is_safetensors(head: bytes, size: int) -> bool:
    if len(head) < 9:
        return False
    header_bytes = int.from_bytes(head[:8], "little")
    return header_bytes <= size - 8 and head[8:9] == b"{"

"""78 damaged or unusual GGUF files: each is refused with a sentence or loads, quickly and in little memory."""

import json
import time
import tracemalloc
from pathlib import Path

import pytest

from models.architectures import describe
from models.errors import ModelError
from models.gguf import open_gguf

FOLDER = Path(__file__).parents[1] / "data" / "gguf_broken"
INDEX = json.loads((FOLDER / "index.json").read_text())


def verdict(path: Path) -> tuple[str, str]:
    try:
        with open_gguf(path) as gguf:
            describe(gguf)
    except ModelError as error:
        return "reject", str(error)
    return "loads", ""


@pytest.mark.parametrize("name", INDEX)
def test_verdict(name: str) -> None:
    tracemalloc.start()
    began = time.perf_counter()
    try:
        result, message = verdict(FOLDER / name)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert time.perf_counter() - began < 1
    assert peak_bytes < 4 << 20
    assert INDEX[name]["expect"] in (result, "either"), message
    if result == "reject":
        assert message.isprintable()
        assert message.endswith(".")
        assert 30 < len(message) < 300


@pytest.mark.parametrize(
    "name, says",
    [
        ("split_missing/tiny-00001-of-00002.gguf", "tiny-00002-of-00002.gguf"),
        ("split_second_only/tiny-00002-of-00002.gguf", "tiny-00001-of-00002.gguf"),
        (
            "unknown_arch.gguf",
            'This file holds a "zorblax" model. Inglenook can\'t run that kind yet. It runs llama models.',
        ),
        ("unknown_quant_type.gguf", '"blk.0.attn_q.weight" as the unknown type 999'),
        ("tensor_missing.gguf", '"output_norm.weight"'),
        ("shape_mismatch.gguf", "16 x 8"),
        ("kv_block_count_huge.gguf", "2,147,483,647 layers"),
        ("duplicate_key.gguf", '"llama.block_count" twice'),
        ("big_endian.gguf", "big-endian"),
        ("html_error_page.gguf", "web page"),
        ("not_gguf_zip.gguf", "zip archive"),
    ],
)
def test_the_message_names_the_cause(name: str, says: str) -> None:
    assert says in verdict(FOLDER / name)[1]

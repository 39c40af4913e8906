"""Moves of whole pages against numpy: every byte of a moved page, and none beside it, wherever its parts lie."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from shaders.arena import Arena
from shaders.device import Buffer, Gpu
from shaders.errors import BindingError
from shaders.kernel import KernelCache
from shaders.ops.pages import PageWindow, gather_pages, page_windows, scatter_pages
from shaders.run import submit
from tests.shaders.harness import Bytes, giving_back, rng_of, small_windows

NUM_PAGES = 7
MAX_MOVED = 4
PART_BYTES = {
    "one head of one element, f16": 16 * 2,
    "heads of 64, f16": 16 * 3 * 64 * 2,
    "heads of 64, f32": 16 * 3 * 64 * 4,
    "heads of 72, f16": 16 * 72 * 2,
    "not whole workgroups": 16 * 65,
}


@dataclass(frozen=True)
class Pages:
    """Pages in arenas, packed ones beside them, and what is known to be in all of them."""

    gpu: Gpu
    kernels: KernelCache
    parts: Sequence[Buffer]
    part_bytes: int
    windows: list[PageWindow]
    moved: Buffer
    packed: Buffer
    whole: dict[int, Bytes]
    """The contents of each buffer that holds parts, gaps included."""

    def part(self, index: int) -> Bytes:
        """[pages, part bytes], a view of `whole`."""
        buffer = self.parts[index]
        size = NUM_PAGES * self.part_bytes
        return self.whole[buffer.pointer][buffer.offset :][:size].reshape(NUM_PAGES, -1)

    def page(self, page: int) -> Bytes:
        """One page as it should be packed."""
        return np.concatenate([self.part(index)[page] for index in range(len(self.parts))])

    def set_page(self, page: int, data: Bytes) -> None:
        for index, piece in enumerate(data.reshape(len(self.parts), -1)):
            self.part(index)[page] = piece

    def run(self, name: str, pages: Sequence[int]) -> None:
        self.gpu.write(self.moved, 0, np.array(pages, np.uint32))
        make = gather_pages if name == "gather" else scatter_pages
        dispatches = make(self.kernels, self.windows, moved=self.moved, packed=self.packed)
        submit(self.gpu, [dispatch.at(len(pages), 0) for dispatch in dispatches])

    def check(self, packed: Bytes) -> None:
        """All buffers are as they should be; the tail of `packed` that is not given is whatever was there."""
        for pointer, expected in self.whole.items():
            np.testing.assert_array_equal(self.gpu.read(self.gpu._buffers[pointer]), expected)
        np.testing.assert_array_equal(self.gpu.read(self.packed, 0, packed.size), packed)


def make_pages(gpu: Gpu, kernels: KernelCache, part_bytes: int, num_parts: int, chunk_parts: int) -> Pages:
    """Parts with random bytes, so many to a chunk of the arena; 0: each in a buffer of its own."""
    size = NUM_PAGES * part_bytes
    padded = -(-size // 256) * 256
    arena = Arena(gpu, "pages", chunk_parts * padded if chunk_parts else size)
    parts = [arena.take(f"part {index}", size) for index in range(num_parts)]
    random = rng_of("pages", part_bytes, num_parts, chunk_parts)
    whole: dict[int, Bytes] = {}
    for part in parts:
        if part.pointer not in whole:
            buffer = gpu._buffers[part.pointer]
            whole[part.pointer] = random.integers(0, 256, buffer.size, np.uint8)
            gpu.write(buffer, 0, whole[part.pointer])
    return Pages(
        gpu=gpu,
        kernels=kernels,
        parts=parts,
        part_bytes=part_bytes,
        windows=page_windows(gpu, parts, part_bytes),
        moved=gpu.storage("moved", 4 * MAX_MOVED),
        packed=gpu.storage("packed", MAX_MOVED * num_parts * part_bytes),
        whole=whole,
    )


def move_and_check(pages: Pages) -> None:
    """Out and back in all numbers and orders, again and again through the same buffers."""
    random = rng_of("moves", pages.part_bytes, len(pages.parts))
    for wanted in ([3], [6, 0, 5, 2], [0, 1], [4, 3, 1]):
        pages.run("gather", wanted)
        packed = np.concatenate([pages.page(page) for page in wanted])
        pages.check(packed)
        targets = random.permutation(NUM_PAGES)[: len(wanted)].tolist()
        pages.run("scatter", targets)
        for page, data in zip(targets, packed.reshape(len(wanted), -1), strict=True):
            pages.set_page(page, data)
        pages.check(packed)


@pytest.fixture(autouse=True)
def _gives_back(gpu: Gpu) -> Iterator[None]:
    with giving_back(gpu):
        yield


@pytest.mark.parametrize("num_parts, chunk_parts, num_windows", [(1, 2, 1), (5, 5, 1), (9, 4, 3), (3, 0, 3)])
@pytest.mark.parametrize("part_bytes", PART_BYTES.values(), ids=PART_BYTES)
def test_out_and_back(
    gpu: Gpu, kernels: KernelCache, part_bytes: int, num_parts: int, chunk_parts: int, num_windows: int
) -> None:
    pages = make_pages(gpu, kernels, part_bytes, num_parts, chunk_parts)
    assert len(pages.windows) == num_windows
    move_and_check(pages)


def test_an_arena_larger_than_a_binding(gpu: Gpu, kernels: KernelCache) -> None:
    """Nine parts at distances of 1024 in one buffer, of which a binding spans four."""
    with small_windows(3 * 1024 + NUM_PAGES * 128):
        pages = make_pages(gpu, kernels, 128, 9, 9)
        assert [window.num_parts for window in pages.windows] == [4, 4, 1]
        with pytest.raises(BindingError, match="packed is larger than one binding"):
            pages.run("gather", [0])
    move_and_check(pages)


def test_parts_at_unequal_distances(gpu: Gpu, kernels: KernelCache) -> None:
    """Others may have taken from the arena in between, or the parts may come in another order."""
    arena = Arena(gpu, "pages", 1 << 16)
    size = NUM_PAGES * 256
    parts = [arena.take("part", size) for _ in range(3)]
    arena.take("other", 100)
    parts += [arena.take("part", size) for _ in range(2)]
    assert [window.num_parts for window in page_windows(gpu, parts, 256)] == [3, 2]
    assert [window.num_parts for window in page_windows(gpu, parts[::-1], 256)] == [1] * 5


def test_what_vectors_cannot_copy_is_refused(gpu: Gpu) -> None:
    with pytest.raises(BindingError, match="40 bytes in each part are no multiple of 16"):
        page_windows(gpu, [gpu.storage("part", 400)], 40)


def test_many_loads_in_flight_share_a_buffer(gpu: Gpu, kernels: KernelCache) -> None:
    """Many loads through one packed buffer, none waited for: each takes the bytes that were written ahead of it."""
    pages = make_pages(gpu, kernels, 512, 5, 2)
    random = rng_of("queue")
    for page in [*range(NUM_PAGES), 3, 2]:
        data = random.integers(0, 256, 5 * 512, np.uint8)
        gpu.write(pages.packed, 0, data)
        pages.run("scatter", [page])
        pages.set_page(page, data)
    pages.check(data)

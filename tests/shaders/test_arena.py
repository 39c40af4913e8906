"""Parts of an arena: aligned, zeroed, apart from each other, and bound as buffers of their own are."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest

from shaders.arena import Arena
from shaders.device import Gpu
from shaders.dispatch import Constants
from shaders.errors import BindingError
from shaders.kernel import KernelCache
from shaders.run import run_once
from tests.shaders.harness import giving_back

CHUNK = 4096


@pytest.fixture
def arena(gpu: Gpu) -> Iterator[Arena]:
    with giving_back(gpu):
        yield Arena(gpu, "arena", CHUNK)


def test_parts_are_aligned_and_apart(arena: Arena) -> None:
    parts = [arena.take(f"part {size}", size) for size in (1, 16, 17, 256, 257, 1000, 0)]
    assert [part.size for part in parts] == [16, 16, 32, 256, 272, 1008, 16]
    assert len({part.pointer for part in parts}) == 1
    assert all(part.offset % 256 == 0 for part in parts)
    for before, after in pairwise(parts):
        assert after.offset >= before.offset + before.size


def test_a_full_chunk_is_followed_by_another(gpu: Gpu, arena: Arena) -> None:
    parts = [arena.take("part", 1000) for _ in range(9)]
    assert [part.offset for part in parts[:5]] == [0, 1024, 2048, 3072, 0]
    assert len({part.pointer for part in parts}) == 3
    assert gpu.allocated_bytes >= 3 * CHUNK


@pytest.mark.parametrize("size", [CHUNK - 3000, CHUNK // 2])
def test_the_last_part_may_end_with_the_chunk(arena: Arena, size: int) -> None:
    first = arena.take("first", CHUNK - size if size == CHUNK // 2 else 2048)
    second = arena.take("second", size)
    assert first.pointer == second.pointer and second.offset + second.size <= CHUNK


def test_what_is_large_gets_a_buffer_of_its_own(arena: Arena) -> None:
    small = arena.take("small", 100)
    large = arena.take("large", CHUNK // 2 + 1)
    assert large.offset == 0 and large.pointer != small.pointer
    assert arena.take("next", 100).pointer == small.pointer


def test_writes_stay_inside_their_part(gpu: Gpu, arena: Arena) -> None:
    parts = [arena.take("part", 64) for _ in range(3)]
    assert not any(gpu.read(part).any() for part in parts)
    gpu.write(parts[1], 16, np.full(12, 7, np.uint32))
    assert not gpu.read(parts[0]).any() and not gpu.read(parts[2]).any()
    assert gpu.read(parts[1]).view(np.uint32).tolist() == [0] * 4 + [7] * 12
    with pytest.raises(BindingError, match="cannot write"):
        gpu.write(parts[1], 16, np.zeros(13, np.uint32))


def test_parts_bind_where_they_lie(gpu: Gpu, kernels: KernelCache, arena: Arena) -> None:
    shape = Constants(gpu).shape(x_stride=4, y_stride=4)
    arena.take("something before", 100)
    y = arena.take("y", 64)
    gpu.write(y, 0, np.ones(16, np.float32))
    x = gpu.upload("x", np.arange(16, dtype=np.float32))
    run_once(gpu, kernels.get("add").bind({"shape": shape, "x": x, "y": y}), (1, 1, 1))
    assert gpu.read(y).view(np.float32).tolist() == [1.0 + i for i in range(16)]


def test_one_arena_is_not_read_and_written_in_one_dispatch(gpu: Gpu, kernels: KernelCache, arena: Arena) -> None:
    shape = Constants(gpu).shape()
    x, y = arena.take("x", 64), arena.take("y", 64)
    with pytest.raises(BindingError, match="x is both read and written"):
        kernels.get("add").bind({"shape": shape, "x": x, "y": y})


def test_equal_constants_are_made_once(gpu: Gpu) -> None:
    with giving_back(gpu):
        constants = Constants(gpu)
        one, two, other = (constants.shape(rows=n, norm_eps=1e-5) for n in (3, 3, 4))
        assert one is two and other is not one
        assert constants.shape(rows=3, norm_eps=1e-6) is not one

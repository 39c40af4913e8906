"""One graphics device for all kernel tests of a run."""

from collections.abc import Iterator

import pytest

from shaders.device import Gpu, open_gpu
from shaders.kernel import KernelCache


@pytest.fixture(scope="session")
def gpu() -> Iterator[Gpu]:
    opened = open_gpu()
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def kernels(gpu: Gpu) -> KernelCache:
    return KernelCache(gpu)

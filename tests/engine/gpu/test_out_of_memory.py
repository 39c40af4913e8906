"""A device that refuses memory: at a load cached pages go first, later only the request that wanted more ends."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.errors import DeviceFailed, ModelNotLoaded, OutOfMemory
from engine.function_table import Row, Sample
from engine.generate import load_blocking
from engine.load_plan import estimate_load
from engine.loader import load_model
from engine.loading import LoadedModel, LoadOptions, LoadProgress
from engine.request import SamplingParams
from engine.threaded import ThreadedEngine
from shaders.device import Buffer, Gpu
from shaders.errors import OutOfDeviceMemory
from tests.engine.conftest import WAIT_S, Caller
from tests.engine.gpu.conftest import DATA, table_of

TINY = DATA / "gguf_llama" / "tiny-F16.gguf"
SERVER = LoadOptions(model=TINY, mode="server")
CREATE = Gpu._create
Refuse = Callable[[Callable[[Gpu, str, int], bool]], None]


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Refuse:
    """refuse(when): every device refuses a buffer for which when(gpu, name, size) holds."""

    def install(when: Callable[[Gpu, str, int], bool]) -> None:
        def create(gpu: Gpu, name: str, size: int, usage: str) -> Buffer:
            if when(gpu, name, size):
                raise OutOfDeviceMemory(f"The graphics device refused {size} bytes for {name}")
            return CREATE(gpu, name, size, usage)

        monkeypatch.setattr(Gpu, "_create", create)

    return install


def load(options: LoadOptions, on_progress: Callable[[LoadProgress], None] = lambda event: None) -> LoadedModel:
    return load_model(options, on_progress, lambda: False)


def room_for(total: int) -> Callable[[Gpu, str, int], bool]:
    return lambda gpu, name, size: gpu.allocated_bytes + size > total


@pytest.mark.parametrize("share", [0.9, 0.6, 0.2])
def test_a_smaller_pool_is_tried_before_a_load_fails(refuse: Refuse, share: float) -> None:
    """With room for `share` of the pages beyond what a single context needs."""
    planned = estimate_load(SERVER)
    page_bytes, least = planned.limits.page_bytes, planned.limits.context_length // 16 + 1
    model = load(SERVER)
    peak = table_of(model).gpu_bytes
    model.table.close()
    refuse(room_for(peak - int((1 - share) * (planned.limits.num_pages - least) * page_bytes)))
    told: list[LoadProgress] = []
    model = load(SERVER, told.append)
    try:
        limits = model.table.limits
        assert least <= limits.num_pages < planned.limits.num_pages
        assert limits.context_length == planned.limits.context_length
        estimates = [event.estimate for event in told if event.estimate is not None]
        assert estimates[0] == planned.estimate
        assert estimates[-1].context == limits.num_pages * page_bytes
        assert [estimate.total for estimate in estimates] == sorted((e.total for e in estimates), reverse=True)
    finally:
        model.table.close()


@pytest.mark.parametrize("buffer", ["logits", "moved pages", "saved pages"])
def test_what_fits_nowhere_is_refused_by_a_context_that_may(refuse: Refuse, buffer: str) -> None:
    refuse(lambda gpu, name, size: name == buffer)
    with pytest.raises(ModelNotLoaded, match=r"has no room for \d+ MB.* a context of 256 or less\.$"):
        load(SERVER)


def test_a_pool_that_somebody_asked_for_is_not_made_smaller(refuse: Refuse) -> None:
    tries: list[int] = []

    def pages(gpu: Gpu, name: str, size: int) -> bool:
        tries.extend([size] if name == "pages" else [])
        return name == "pages"

    refuse(pages)
    with pytest.raises(ModelNotLoaded):
        load(LoadOptions(model=TINY, mode="server", total_tokens=4096))
    assert len(tries) == 1


@pytest.mark.parametrize("number", range(1, 60, 7))
def test_whichever_allocation_is_refused_nothing_is_left_behind(
    refuse: Refuse, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Gpu] = []
    init = Gpu.__init__
    monkeypatch.setattr(Gpu, "__init__", lambda gpu, *args: (init(gpu, *args), opened.append(gpu))[0])
    count = 0

    def one(gpu: Gpu, name: str, size: int) -> bool:
        nonlocal count
        count += 1
        return count == number

    refuse(one)
    try:
        load(SERVER).table.close()
    except (ModelNotLoaded, DeviceFailed) as error:
        assert str(error).endswith(".")
    assert opened and [gpu.allocated_bytes for gpu in opened] == [0] * len(opened)


LATE = {
    "logprobs": {"logprobs": 2},
    "logprobs 2": {"logprobs": 2},
    "processed logits": {"sampling": SamplingParams(temperature=0.0, logit_bias=((5, 1.0),))},
    "token counts": {"sampling": SamplingParams(temperature=0.0, presence_penalty=1.0)},
}


@pytest.mark.parametrize("buffer", LATE)
def test_a_buffer_that_is_refused_later_ends_one_request_only(refuse: Refuse, buffer: str) -> None:
    engine = ThreadedEngine(load_model)
    try:
        load_blocking(engine, LoadOptions(model=TINY, context=256))
        table = engine.model.table
        options = {"max_tokens": 30, "ignore_eos": True}
        undisturbed = Caller(engine, "before", (5, 6, 7), **options)
        undisturbed.end()
        refuse(lambda gpu, name, size: name == buffer)
        plain = Caller(engine, "plain", (5, 6, 7), **options)
        plain.next()
        held = table_of(engine.model)._runner.gpu.allocated_bytes
        for name in ("first", "second"):
            last = Caller(engine, name, (8, 9), **options, **LATE[buffer]).end()
            assert last.finish_reason == "error"
            assert "too little memory left for this request" in last.error
        assert plain.end().finish_reason == "length"
        assert plain.text == undisturbed.text
        assert engine.model.table is table
        refuse(lambda gpu, name, size: False)
        assert table_of(engine.model)._runner.gpu.allocated_bytes - held < 1 << 20
        assert Caller(engine, "after", (8, 9), **options, **LATE[buffer]).end().finish_reason == "length"
        assert engine.model.table is table
    finally:
        engine.shutdown(WAIT_S)


def test_pages_that_cannot_be_copied_end_the_request_that_shares_them(refuse: Refuse) -> None:
    engine = ThreadedEngine(load_model)
    try:
        load_blocking(engine, LoadOptions(model=TINY, context=256))
        refuse(lambda gpu, name, size: name == "page between")
        prompt = tuple(range(5, 45))
        first = Caller(engine, "first", prompt, max_tokens=20, ignore_eos=True)
        assert first.end().finish_reason == "length"
        # It shares half a page with what the first one left, so that page has to be copied.
        last = Caller(engine, "second", (*prompt, 60, 61), max_tokens=4, ignore_eos=True).end()
        assert (last.finish_reason, last.text) == ("error", "")
        assert Caller(engine, "third", (90, 91), max_tokens=4, ignore_eos=True).end().finish_reason == "length"
        refuse(lambda gpu, name, size: False)
        again = Caller(engine, "fourth", (*prompt, 60, 61), max_tokens=4, ignore_eos=True)
        assert again.end().finish_reason == "length"
    finally:
        engine.shutdown(WAIT_S)


def test_a_refused_step_leaves_the_table_as_it_was(refuse: Refuse) -> None:
    """The step after it must not take the refused one's rows for its own."""
    plain, asking = (
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=0.0, logit_bias=((5, 1.0),)),
    )

    def draws(refused: bool) -> list[int]:
        model = load(LoadOptions(model=TINY, context=64))
        table = table_of(model)
        try:
            table.set_pages(0, 0, [0])
            table.set_pages(1, 0, [1])
            tokens: list[int] = []
            for position in range(6):
                if refused and position == 3:
                    table.begin_forward()
                    table.embed([Row(9, 0, 1), Row(9, 1, 1), Row(9, 2, 1)])
                    table.prefill()
                    table.logits([1, 2])
                    table.sample([Sample(1, 1, 2, asking), Sample(2, 1, 3, asking)])
                    with pytest.raises(OutOfMemory):
                        table.end_forward()
                table.begin_forward()
                table.embed([Row(-1 if position else 7, position, 0)])
                table.decode()
                table.logits([0])
                table.sample([Sample(0, 0, position + 1, plain)])
                table.end_forward()
                tokens += table.retire(wait=True).tokens
            return tokens
        finally:
            table.close()

    expected = draws(False)
    refuse(lambda gpu, name, size: name == "processed logits")
    assert draws(True) == expected

"""A device destroyed under a running model: an error on the engine's thread, never an abort, and a fresh start."""

import threading
import time
from pathlib import Path

import pytest

from engine.errors import DeviceFailed
from engine.function_table import FROM_DEVICE, FunctionTable, Row, Sample
from engine.generate import load_blocking, stream
from engine.loader import load_model
from engine.loading import LoadedModel, LoadOptions
from engine.request import GREEDY, Request
from engine.threaded import ThreadedEngine

TINY = Path(__file__).parents[2] / "data" / "gguf_llama" / "tiny-F16.gguf"


def load() -> LoadedModel:
    return load_model(LoadOptions(model=TINY, context=512), lambda progress: None, lambda: False)


def submit(table: FunctionTable, position: int) -> None:
    table.begin_forward()
    table.embed([Row(FROM_DEVICE if position else 5, position, 0)])
    table.decode()
    table.logits([0])
    table.sample([Sample(0, 0, position + 1, GREEDY)])
    table.end_forward()


def decode_until_it_fails(table: FunctionTable) -> None:
    for position in range(500):
        if table.in_flight >= table.limits.max_in_flight:
            table.retire(wait=True)
        submit(table, position)


@pytest.mark.parametrize("delay", [0.0, 0.011, 0.023, 0.04, 0.07])
def test_destroyed_by_another_thread(delay: float) -> None:
    model = load()
    table = model.table
    table.set_pages(0, 0, range(32))

    def destroy() -> None:
        time.sleep(delay)
        table._runner.gpu.device.destroy()

    other = threading.Thread(target=destroy)
    other.start()
    with pytest.raises(DeviceFailed, match="device was lost"):
        decode_until_it_fails(table)
    other.join()
    with pytest.raises(DeviceFailed):
        table.set_pages(0, 0, [1])
    table.close()
    table.close()


def test_a_model_loads_again_afterwards() -> None:
    lost = load()
    lost.table._runner.gpu.device.destroy()
    lost.table.close()
    model = load()
    model.table.set_pages(0, 0, [0])
    submit(model.table, 0)
    assert model.table.retire(wait=True) is not None
    model.table.close()


def test_an_answer_goes_on_after_its_device_was_destroyed() -> None:
    """The same tokens as undisturbed, told once each, from a model that loaded itself again."""
    request = Request(request_id="a", prompt_ids=tuple(range(5, 45)), max_tokens=120, ignore_eos=True)
    engine = ThreadedEngine(load_model)
    try:
        load_blocking(engine, LoadOptions(model=TINY, context=512))
        expected = [token for delta in stream(engine, request) for token in delta.token_ids]
        tokens: list[int] = []
        destroyed = False
        for delta in stream(engine, request):
            assert delta.error is None
            tokens += delta.token_ids
            if len(tokens) >= 20 and not destroyed:
                destroyed = True
                engine.model.table._runner.gpu.device.destroy()
        assert tokens == expected
        assert delta.finish_reason == "length"
    finally:
        engine.shutdown()

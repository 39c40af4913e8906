"""Limits from wishes and a device's memory: a wish is kept or refused, and what is said to fit does fit."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import DeviceFacts, EngineConfig, ModelFacts, check_context, config_from, resolve, smaller_pools
from engine.errors import InvalidParameter, ModelNotLoaded
from engine.function_table import PAGE_SIZE

MIB = 1 << 20
MODES = ("interactive", "local", "server")


def model(**changes: int) -> ModelFacts:
    facts = {
        "vocab_size": 32_000,
        "trained_context": 32_768,
        "weight_bytes": 4000 * MIB,
        "page_bytes": 2 * MIB,
        "layer_page_bytes": 2 * MIB // 64,
        "row_bytes": 200_000,
        "sample_bytes": 300_000,
        "logits_bytes": 128_000,
        "slot_bytes": 128_004,
        "position_bytes": 256,
        "trained_window": 0,
    }
    return ModelFacts(**(facts | changes))


def device(free_mib: int, binding_mib: int = 128) -> DeviceFacts:
    return DeviceFacts(free_mib * MIB, binding_mib * MIB, "the test")


def test_everything_is_decided_where_nothing_was_said() -> None:
    limits, estimate = resolve(EngineConfig(), model(), device(8000))
    assert limits.context_length == 8192
    assert limits.num_pages * PAGE_SIZE > limits.context_length
    assert estimate.total <= 8000 * MIB


def test_context_shrinks_to_what_is_free_when_nobody_asked_for_it() -> None:
    limits, estimate = resolve(EngineConfig(), model(), device(4600))
    assert 256 <= limits.context_length < 8192
    assert estimate.total <= 4600 * MIB


def test_a_binding_bounds_the_context_too() -> None:
    limits, _ = resolve(EngineConfig(), model(), device(64_000, binding_mib=4))
    assert limits.num_pages * model().layer_page_bytes <= 4 * MIB


def test_a_wish_that_cannot_fit_is_refused_and_what_is_named_instead_fits() -> None:
    with pytest.raises(ModelNotLoaded) as refused:
        resolve(EngineConfig(context=32_768), model(), device(4600))
    sentence = str(refused.value)
    assert "4.8 GB are free (the test)" in sentence
    named = re.search(r"A context of ([\d,]+) fits", sentence)
    assert named is not None
    resolve(EngineConfig(context=int(named[1].replace(",", ""))), model(), device(4600))


def test_a_model_that_is_too_large_at_all() -> None:
    with pytest.raises(ModelNotLoaded, match=r"needs [\d.]+ GB .* 1\.0 GB are free.* smaller model"):
        resolve(EngineConfig(), model(weight_bytes=5000 * MIB), device(1000))


@pytest.mark.parametrize("context", [0, 1, 32_769])
def test_a_context_that_the_model_has_not(context: int) -> None:
    with pytest.raises(ModelNotLoaded, match=f"A context of {context} is not possible"):
        check_context(context, 32_768)


def test_modes_differ_in_sequences() -> None:
    slots = [resolve(EngineConfig(mode=mode), model(), device(16_000))[0].max_slots for mode in MODES]
    assert slots == sorted(slots) and slots[0] == 1


def test_total_tokens_as_said_or_refused() -> None:
    limits, _ = resolve(EngineConfig(context=1024, total_tokens=4096), model(), device(8000))
    assert limits.num_pages * PAGE_SIZE == 4096
    with pytest.raises(ModelNotLoaded, match="must be 1,024 to"):
        resolve(EngineConfig(context=1024, total_tokens=512), model(), device(8000))


@given(
    st.integers(64, 40_000),
    st.integers(1, 512),
    st.builds(
        EngineConfig,
        mode=st.sampled_from(MODES),
        context=st.none() | st.integers(2, 32_768),
        total_tokens=st.none() | st.integers(1, 100_000),
        max_sequences=st.none() | st.integers(1, 5000),
    ),
)
def test_whatever_is_granted_fits_and_is_what_was_asked_for(free: int, binding: int, config: EngineConfig) -> None:
    facts = model()
    try:
        limits, estimate = resolve(config, facts, device(free, binding))
    except ModelNotLoaded as refused:
        assert_what_it_names_fits(str(refused), config, facts, device(free, binding))
        return
    assert estimate.total <= free * MIB
    assert limits.num_pages * facts.layer_page_bytes <= binding * MIB
    assert limits.max_samples * facts.logits_bytes <= binding * MIB
    assert limits.max_slots <= limits.max_rows and limits.max_slots <= limits.max_samples
    assert limits.num_pages * PAGE_SIZE >= limits.context_length
    assert config.context in (None, limits.context_length)
    assert config.max_sequences in (None, limits.max_slots)
    assert config.total_tokens is None or limits.num_pages == -(-config.total_tokens // PAGE_SIZE)


def assert_what_it_names_fits(sentence: str, config: EngineConfig, facts: ModelFacts, where: DeviceFacts) -> None:
    number = r"([\d,]+)"
    if "With one: " in sentence:
        config = replace(config, max_sequences=1)
    if named := re.search(rf"A context of {number} fits", sentence):
        better = replace(config, context=as_int(named[1]))
    elif named := re.search(rf"Room for {number} tokens in all fits", sentence):
        better = replace(config, context=None, total_tokens=as_int(named[1]))
    elif named := re.search(rf"do not fit beside this model; {number} do", sentence):
        better = replace(config, max_sequences=as_int(named[1]))
    elif named := re.search(rf"it must be {number} to {number}", sentence):
        better = replace(config, total_tokens=as_int(named[2]))
    else:
        assert "A smaller model" in sentence
        with pytest.raises(ModelNotLoaded):
            resolve(EngineConfig(mode="interactive", max_sequences=config.max_sequences, context=256), facts, where)
        return
    resolve(better, facts, where)


def as_int(text: str) -> int:
    return int(text.replace(",", ""))


def test_more_sequences_than_fit_are_refused_by_a_number_that_fits() -> None:
    with pytest.raises(ModelNotLoaded, match=r"^1,000 sequences at once do not fit beside this model; 500 do\.$"):
        resolve(EngineConfig(max_sequences=1000), model(), device(4600))


def test_tokens_in_all_bound_the_context_where_nobody_named_one() -> None:
    limits, estimate = resolve(EngineConfig(total_tokens=1000), model(), device(16_000))
    assert (limits.context_length, limits.num_pages) == (1000, 63)
    assert estimate.tokens == 1008


def test_a_smaller_pool_keeps_a_context_and_gives_up_what_is_beside_it() -> None:
    config = EngineConfig(mode="server", context=1024)
    limits, estimate = resolve(config, model(), device(16_000))
    smaller = list(smaller_pools(config, limits, estimate))
    counts = [each.num_pages for each, _ in smaller]
    assert counts == [65 + (limits.num_pages - 65) // 2, 65]
    for each, told in smaller:
        assert each.context_length == 1024
        assert told.total == estimate.total - (limits.num_pages - each.num_pages) * limits.page_bytes


def test_a_pool_that_was_asked_for_is_never_made_smaller() -> None:
    config = EngineConfig(context=1024, total_tokens=8192)
    assert not list(smaller_pools(config, *resolve(config, model(), device(16_000))))


def test_a_pool_that_would_save_next_to_nothing_is_not_tried() -> None:
    config = EngineConfig(mode="interactive", context=1024)
    assert not list(smaller_pools(config, *resolve(config, model(), device(16_000))))


def test_unknown_settings_and_values_are_errors() -> None:
    assert config_from({"mode": "server", "context": 512}) == EngineConfig(mode="server", context=512)
    for wrong in ({"contex": 5}, {"mode": "fast"}, {"context": 0}, {"context": "4096"}, {"max_sequences": True}):
        with pytest.raises(InvalidParameter):
            config_from(wrong)


def test_no_window_where_nobody_speaks_of_one() -> None:
    limits, _ = resolve(EngineConfig(), model(), device(8000))
    assert (limits.window, limits.sinks) == (0, 0)


@pytest.mark.parametrize(
    ("said", "trained", "expected"),
    [
        ({}, 4096, (4096, 0)),
        ({"window": 1000}, 0, (1000, 4)),
        ({"window": 1000}, 4096, (1000, 4)),
        ({"window": 1000, "sinks": 0}, 0, (1000, 0)),
        ({"sinks": 17}, 4096, (4096, 17)),
        ({"window": 0}, 4096, (0, 0)),
        ({"window": 8190}, 0, (8190, 2)),
        ({"window": 8192}, 0, (0, 0)),
        ({"window": 8192, "sinks": 100}, 0, (0, 0)),
        ({}, 8192, (0, 0)),
    ],
)
def test_window_and_sinks(said: dict[str, int], trained: int, expected: tuple[int, int]) -> None:
    limits, _ = resolve(EngineConfig(context=8192, **said), model(trained_window=trained), device(8000))
    assert (limits.window, limits.sinks) == expected


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ({"window": 15}, "A window of 15 is not possible: it must be 16 tokens or more"),
        ({"window": 8000, "sinks": 193}, "193 sinks are not possible: .* must be 0 to 192"),
        ({"sinks": 4}, "Sinks without a window"),
    ],
)
def test_a_window_that_is_not_possible(said: dict[str, int], says: str) -> None:
    with pytest.raises(ModelNotLoaded, match=says):
        resolve(EngineConfig(context=8192, **said), model(), device(8000))


def test_with_a_window_a_context_needs_no_more_memory_than_its_window() -> None:
    tight = device(4500)
    with pytest.raises(ModelNotLoaded):
        resolve(EngineConfig(context=32_768), model(), tight)
    limits, _ = resolve(EngineConfig(context=32_768, window=512, sinks=4), model(), tight)
    assert 1 + 33 + 8 < limits.num_pages < 100
    limits, _ = resolve(EngineConfig(context=32_768, window=512, total_tokens=1024), model(), tight)
    assert limits.num_pages == 64


@pytest.mark.parametrize("values", [{"window": -1}, {"sinks": -1}, {"window": "on"}, {"window": True}])
def test_a_window_from_a_file_is_a_number(values: dict[str, object]) -> None:
    with pytest.raises(InvalidParameter, match="must be a whole number from 0 up"):
        config_from(values)
    assert config_from({"window": 0, "sinks": 0}).window == 0

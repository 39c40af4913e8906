"""What a sample may ask of its logits, through the function table, on a tiny model: bias, penalties, bitmask, logprobs,
forced tokens, and pages copied ahead of a step. Steps run ahead of the host wherever serving would let them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from engine.function_table import FROM_DEVICE, RetiredStep, Row, Sample
from engine.gpu_logits import mask_bytes
from engine.gpu_table import GpuTable
from engine.request import GREEDY, SamplingParams, TokenLogprobs
from tests.engine.gpu.conftest import DATA, table_of

PROMPT = [7, 300, 12, 12, 250, 99, 41, 7, 180, 23, 64, 5]
PAGES_PER_SLOT = 5
STEPS = 12

Logits = npt.NDArray[np.float32]
MakeSample = Callable[[int, int], Sample]
"""(row, position of the token drawn) -> what to ask"""


@pytest.fixture(scope="module")
def table(model_of: Callable) -> GpuTable:
    return table_of(model_of(DATA / "gguf_llama" / "tiny-Q8_0.gguf"))


@pytest.fixture(scope="module")
def logits_of(model_of: Callable, rows_of: Callable) -> Callable[[Sequence[int]], Logits]:
    model = model_of(DATA / "gguf_llama" / "tiny-Q8_0.gguf")
    return lambda ids: rows_of(model, list(ids))


def submit(table: GpuTable, rows: Sequence[Row], samples: Sequence[Sample], copies: Sequence[tuple[int, int]] = ()):
    table.begin_forward()
    for pair in copies:
        table.copy_pages([pair])
    table.embed(rows)
    table.prefill()
    if samples:
        table.logits([sample.row for sample in samples])
        table.sample(samples)
    table.end_forward()


def retire_all(table: GpuTable) -> list[RetiredStep]:
    found = []
    while table.in_flight:
        step = table.retire(wait=True)
        assert step is not None
        found.append(step)
    return found


def own_pages(table: GpuTable, slot: int) -> None:
    table.set_pages(slot, 0, range(slot * PAGES_PER_SLOT, (slot + 1) * PAGES_PER_SLOT))


def generate(
    table: GpuTable, make: MakeSample, num_steps: int = STEPS, *, slot: int = 0, prompt: Sequence[int] = PROMPT
) -> list[RetiredStep]:
    """The prompt, then steps that feed on the device's own tokens, as many in flight as the table takes."""
    own_pages(table, slot)
    rows = [Row(token, position, slot) for position, token in enumerate(prompt)]
    found: list[RetiredStep] = []
    for step in range(num_steps):
        if table.in_flight == table.limits.max_in_flight:
            oldest = table.retire(wait=True)
            assert oldest is not None
            found.append(oldest)
        submit(table, rows, [make(len(rows) - 1, len(prompt) + step)])
        rows = [Row(FROM_DEVICE, len(prompt) + step, slot)]
    return found + retire_all(table)


def tokens_of(steps: Sequence[RetiredStep]) -> list[int]:
    return [step.tokens[0] for step in steps]


def asking(params: SamplingParams, slot: int = 0, **extras: object) -> MakeSample:
    return lambda row, position: Sample(row, slot, position, params, **extras)  # type: ignore[arg-type]


def test_bias_forces_and_bans(table: GpuTable) -> None:
    plain = tokens_of(generate(table, asking(GREEDY)))
    forced = replace(GREEDY, logit_bias=((77, 100.0), (78, -3.0)))
    assert tokens_of(generate(table, asking(forced))) == [77] * STEPS
    banned = replace(GREEDY, logit_bias=((plain[0], -100.0),))
    assert plain[0] not in tokens_of(generate(table, asking(banned)))


def test_bias_on_one_token_twice_adds_up(table: GpuTable) -> None:
    params = replace(GREEDY, logit_bias=((77, 100.0), (78, 60.0), (78, 60.0)))
    assert tokens_of(generate(table, asking(params), 2)) == [78, 78]


PENALTIES = {
    "repetition": {"repetition_penalty": 1.6},
    "frequency": {"frequency_penalty": 0.4},
    "presence": {"presence_penalty": 1.5},
    "a reward": {"frequency_penalty": -1.0, "repetition_penalty": 0.8},
    "all and a bias": {
        "repetition_penalty": 1.3,
        "frequency_penalty": 0.3,
        "presence_penalty": -0.2,
        "logit_bias": ((7, 2.0), (300, -1.0), (11, 0.5)),
    },
}


def penalized(logits: Logits, params: SamplingParams, prompt: Sequence[int], answer: Sequence[int]) -> np.ndarray:
    found = logits.astype(np.float64)
    for token, bias in params.logit_bias:
        found[token] += bias
    for token in {*prompt, *answer}:
        found[token] *= params.repetition_penalty if found[token] < 0 else 1 / params.repetition_penalty
    for token in answer:
        found[token] -= params.frequency_penalty
    for token in set(answer):
        found[token] -= params.presence_penalty
    return found


def check_simulation(
    tokens: list[int], params: SamplingParams, prompt: Sequence[int], told: Sequence[int], logits: Logits
) -> None:
    """Each token is the host's choice too; `told` is the answer that the device was told of at the start."""
    for step, token in enumerate(tokens):
        row = penalized(logits[len(prompt) + len(told) - 1 + step], params, prompt, [*told, *tokens[:step]])
        assert row[token] >= row.max() - 1e-4, step


@pytest.mark.parametrize("name", PENALTIES)
def test_penalties_while_running_ahead(name: str, table: GpuTable, logits_of: Callable) -> None:
    params = SamplingParams(temperature=0.0, **PENALTIES[name])  # type: ignore[arg-type]
    table.set_counts(0, PROMPT, [])
    tokens = tokens_of(generate(table, asking(params)))
    assert tokens != tokens_of(generate(table, asking(GREEDY)))
    check_simulation(tokens, params, PROMPT, [], logits_of(PROMPT + tokens))


def test_penalties_go_on_in_another_slot(table: GpuTable, logits_of: Callable) -> None:
    """As after a preemption: the slot is told what there was, whatever was counted in it before."""
    params = SamplingParams(temperature=0.0, frequency_penalty=0.5, repetition_penalty=1.2)
    table.set_counts(0, PROMPT, [])
    tokens = tokens_of(generate(table, asking(params)))
    for slot in (0, 3):
        table.set_counts(slot, PROMPT, tokens[:5])
        rest = tokens_of(generate(table, asking(params, slot), STEPS - 5, slot=slot, prompt=PROMPT + tokens[:5]))
        assert rest == tokens[5:]
    check_simulation(tokens[5:], params, PROMPT, tokens[:5], logits_of(PROMPT + tokens))


def exact_logprobs(logits: Logits) -> npt.NDArray[np.float64]:
    below = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return below - np.log(np.exp(below).sum(axis=-1, keepdims=True))


def check_logprobs(found: TokenLogprobs | None, token: int, logits: Logits, count: int) -> None:
    assert found is not None
    exact = exact_logprobs(logits)
    assert found.token == token
    assert abs(found.logprob - exact[token]) < 1e-4
    ids = [token for token, _ in found.top]
    assert ids == np.argsort(-logits, kind="stable")[:count].tolist()
    np.testing.assert_allclose([logprob for _, logprob in found.top], exact[ids], atol=1e-4, rtol=0)


@pytest.mark.parametrize("changes", [{}, {"frequency_penalty": 1.0, "logit_bias": ((4, -5.0), (9, 5.0))}])
@pytest.mark.parametrize("count", [20, 1, 0])
def test_logprobs_are_those_of_the_raw_logits(count: int, changes: dict, table: GpuTable, logits_of: Callable) -> None:
    params = SamplingParams(temperature=1.3, top_k=50, seed=3, **changes)
    table.set_counts(0, PROMPT, [])
    steps = generate(table, asking(params, top_logprobs=count))
    tokens = tokens_of(steps)
    logits = logits_of(PROMPT + tokens)
    for index, step in enumerate(steps):
        check_logprobs(step.logprobs[0], tokens[index], logits[len(PROMPT) - 1 + index], count)


def test_logprobs_of_a_prompt(table: GpuTable, logits_of: Callable) -> None:
    """Forced tokens name what follows; the last row's draw alone becomes the slot's token."""
    own_pages(table, 0)
    room = min(table.limits.max_samples, len(PROMPT))
    rows = [Row(token, position, 0) for position, token in enumerate(PROMPT[:room])]
    samples = [
        Sample(index, 0, index + 1, GREEDY, top_logprobs=3, forced=token) for index, token in enumerate(PROMPT[1:room])
    ]
    samples.insert(0, Sample(room - 1, 0, room, GREEDY, top_logprobs=3))
    submit(table, rows, samples)
    submit(table, [Row(FROM_DEVICE, room, 0)], [Sample(0, 0, room + 1, GREEDY)])
    first, second = retire_all(table)
    assert first.tokens[1:] == tuple(PROMPT[1:room])
    logits = logits_of([*PROMPT[:room], first.tokens[0]])
    assert first.tokens[0] == logits[room - 1].argmax()
    check_logprobs(first.logprobs[0], first.tokens[0], logits[room - 1], 3)
    for index in range(room - 1):
        check_logprobs(first.logprobs[1 + index], PROMPT[1 + index], logits[index], 3)
    assert second == RetiredStep(second.step, (int(logits[room].argmax()),))


def test_forced_tokens_are_not_counted(table: GpuTable) -> None:
    """Nor beside a slot that counts."""
    params = SamplingParams(temperature=0.0, presence_penalty=2.0, frequency_penalty=2.0)
    table.set_counts(0, PROMPT, [])
    expected = tokens_of(generate(table, asking(params), 1))[0]
    for slot in (0, 1):
        table.set_counts(slot, PROMPT, [])
        own_pages(table, slot)
    rows = [Row(token, position, 0) for position, token in enumerate(PROMPT)]
    drawn = Sample(len(rows) - 1, 0, len(rows), params)
    beside = Sample(len(rows), 1, 1, params)
    for _ in range(3):
        submit(table, [*rows, Row(1, 0, 1)], [replace(drawn, forced=expected), beside])
    submit(table, rows, [drawn])
    assert tokens_of(retire_all(table)) == [expected] * 4


def mask_of(allowed: Sequence[int], vocab_size: int) -> bytes:
    bits = np.zeros(8 * mask_bytes(vocab_size), bool)
    bits[list(allowed)] = True
    return np.packbits(bits, bitorder="little").tobytes()


def test_a_bitmask_for_each_step(table: GpuTable) -> None:
    vocab_size = table.limits.vocab_size
    draw = np.random.default_rng(4)
    masks = [draw.choice(vocab_size, size, replace=False).tolist() for size in (1, 2, 40, 1, 3)]
    masks[1] = [0, vocab_size - 1]
    params = SamplingParams(temperature=5.0, seed=2)

    def masked(row: int, position: int) -> Sample:
        return Sample(row, 0, position, params, bitmask=mask_of(masks[position - len(PROMPT)], vocab_size))

    for token, allowed in zip(tokens_of(generate(table, masked, len(masks))), masks, strict=True):
        assert token in allowed


def test_asking_now_and_then_changes_no_token(table: GpuTable) -> None:
    """Steps whose table the device has made itself alternate with uploaded ones: plain, masked by a mask that allows
    all, with logprobs, and at last one that follows a plain one but is forced."""
    params = SamplingParams(temperature=1.0, seed=9)
    expected = tokens_of(generate(table, asking(params)))
    vocab_size = table.limits.vocab_size
    extras: dict[str, dict[str, object]] = {
        "plain": {},
        "mask": {"bitmask": mask_of(range(vocab_size), vocab_size)},
        "logprobs": {"top_logprobs": 2},
        "forced": {"forced": (expected[-1] + 1) % vocab_size},
    }
    kinds = ["plain", "plain", "mask", "plain", "logprobs", "plain", "logprobs", "mask", "mask", "plain", "plain"]
    kinds.append("forced")

    def sometimes(row: int, position: int) -> Sample:
        return replace(Sample(row, 0, position, params), **extras[kinds[position - len(PROMPT)]])  # type: ignore[arg-type]

    steps = generate(table, sometimes)
    assert tokens_of(steps) == [*expected[:-1], extras["forced"]["forced"]]
    assert [bool(step.logprobs) for step in steps] == [kind == "logprobs" for kind in kinds]


def test_neighbours_that_ask_change_nothing(table: GpuTable) -> None:
    """Rows and draws of plain samples, bit by bit, next to samples that ask for everything."""
    prompts = [PROMPT[slot:] + PROMPT[:slot] for slot in range(4)]
    rows = [Row(token, position, slot) for slot, ids in enumerate(prompts) for position, token in enumerate(ids)]
    plain = [
        Sample((slot + 1) * len(PROMPT) - 1, slot, len(PROMPT), SamplingParams(temperature=0.9, top_p=0.9, seed=slot))
        for slot in range(4)
    ]
    everything = SamplingParams(
        temperature=0.9, top_p=0.9, seed=1, repetition_penalty=1.5, frequency_penalty=1.0, logit_bias=((5, 3.0),)
    )
    mask = mask_of(range(0, table.limits.vocab_size, 2), table.limits.vocab_size)
    mixed = [
        plain[0],
        replace(plain[1], params=everything, bitmask=mask, top_logprobs=20),
        replace(plain[2], top_logprobs=5),
        plain[3],
    ]
    found = []
    for samples in (plain, mixed, plain):
        for slot in range(4):
            own_pages(table, slot)
            table.set_counts(slot, prompts[slot], [])
        submit(table, rows, samples)
        logits = table.read_logits(4)
        found.append((logits, retire_all(table)[0], table.dispatches_last_step))
    (logits, alone, dispatches), (logits_mixed, beside, dispatches_mixed), again = found
    np.testing.assert_array_equal(logits, logits_mixed)
    assert beside.tokens[1] % 2 == 0
    assert [beside.tokens[index] for index in (0, 2, 3)] == [alone.tokens[index] for index in (0, 2, 3)]
    assert [entry is None for entry in beside.logprobs] == [True, False, False, True]
    assert (again[1].tokens, again[1].logprobs, again[2]) == (alone.tokens, (), dispatches)
    assert dispatches_mixed == dispatches + 2  # processed, counted, reported; not advanced


def test_a_sequence_goes_on_upon_copied_pages(table: GpuTable) -> None:
    ids = np.random.default_rng(8).integers(0, table.limits.vocab_size, 45).tolist()
    cut = 40
    table.set_pages(0, 0, range(3))
    table.set_pages(1, 0, [7, 1 + 4, 9])

    def last_logits(slot: int, tokens: Sequence[int], copies: Sequence[tuple[int, int]] = ()) -> Logits:
        rows = [Row(token, cut + index, slot) for index, token in enumerate(tokens)]
        submit(table, rows, [Sample(len(rows) - 1, slot, cut + len(rows), GREEDY)], copies)
        logits = table.read_logits(1)
        retire_all(table)
        return logits

    start = [Row(token, position, 0) for position, token in enumerate(ids[:cut])]
    submit(table, start, [])
    expected = last_logits(0, ids[cut:])
    submit(table, start, [])
    # The copy happens ahead of the step that writes into it, even by way of a page between.
    others = [(token + 1) % table.limits.vocab_size for token in ids[cut:]]
    changed = last_logits(1, others, [(0, 7), (1, 12), (12, 5), (2, 9)])
    assert not np.array_equal(changed, expected)
    np.testing.assert_array_equal(last_logits(1, ids[cut:]), expected)
    np.testing.assert_array_equal(last_logits(0, ids[cut:]), expected)


def test_refuses_what_the_model_has_not(table: GpuTable) -> None:
    limits = table.limits
    own_pages(table, 0)
    bad: list[dict[str, object]] = [
        {"forced": limits.vocab_size},
        {"forced": -1},
        {"top_logprobs": 21},
        {"top_logprobs": -1},
        {"bitmask": bytes(mask_bytes(limits.vocab_size) - 4)},
        {"params": replace(GREEDY, logit_bias=((limits.vocab_size, 1.0),))},
    ]
    for extras in bad:
        table.begin_forward()
        table.embed([Row(1, 0, 0)])
        table.logits([0])
        with pytest.raises(ValueError, match=r"range|vocabulary|bytes"):
            table.sample([replace(Sample(0, 0, 1, GREEDY), **extras)])  # type: ignore[arg-type]
    for pair in ((0, limits.num_pages), (-1, 0)):
        with pytest.raises(ValueError, match="page"):
            table.copy_pages([pair])
    for slot, prompt, answer in ((limits.max_slots, [], []), (0, [limits.vocab_size], []), (0, [], [-1])):
        with pytest.raises(ValueError, match="range"):
            table.set_counts(slot, prompt, answer)
    # Nothing of it is left for a step that is in order.
    submit(table, [Row(1, 0, 0)], [Sample(0, 0, 1, GREEDY)])
    assert len(retire_all(table)[0].tokens) == 1


def test_pages_are_whole(table: GpuTable) -> None:
    """Every byte of a page is copied, and none beside it."""
    kv = table._runner._kv
    gpu = table._runner.gpu
    buffers = (*kv.keys, *kv.values)
    random = np.random.default_rng(9)
    before = []
    for buffer in buffers:
        data = random.integers(0, 256, (kv.num_pages, buffer.size // kv.num_pages), np.uint8)
        gpu.write(buffer, 0, data)
        before.append(data)
    table.set_pages(0, 0, [2])
    submit(table, [Row(1, 0, 0)], [], [(0, 4), (kv.num_pages - 1, 3)])
    retire_all(table)
    for buffer, data in zip(buffers, before, strict=True):
        found = gpu.read(buffer, 0, buffer.size).reshape(data.shape)
        data[4], data[3], data[2] = data[0], data[-1], found[2]
        np.testing.assert_array_equal(found, data)
        gpu.write(buffer, 0, np.zeros(buffer.size, np.uint8))

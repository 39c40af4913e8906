"""SmolLM2 under sixteen callers at once, with memory for two or three of their prompts: everybody gets a whole answer.

What each caller asks is drawn from a fixed seed; who meets whom in a step, and who has to give way, is not, and must
not matter. (Giving way is forced in test_serving.py.)
"""

from __future__ import annotations

import faulthandler
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from engine.generate import load_blocking, stream
from engine.loader import load_model
from engine.loading import LoadedModel, LoadOptions
from engine.request import GREEDY, Delta, Request, SamplingParams, TokenLogprobs
from engine.threaded import ThreadedEngine
from models.tokenizer import Tokenizer
from tests.engine.gpu.conftest import read_goldens

NUM_THREADS = 16
CONTEXT = 256
POOL_TOKENS = 256
SLOTS = 6
STOPS = ("e", " the", "\n", "ing", ".", "tion", "zq")
FLAT_BYTES = 64 << 20


@dataclass(frozen=True)
class Job:
    """A request, and what its caller does: read to the end, "close" the iterator or "abort" by id after some deltas,
    or get nothing but an error."""

    request: Request
    caller: str
    after: int


@dataclass
class Outcome:
    """All that a caller was told."""

    job: Job
    deltas: list[Delta] = field(default_factory=list)

    def of(self, index: int) -> list[Delta]:
        return [delta for delta in self.deltas if delta.index == index]

    def tokens(self, index: int) -> list[int]:
        return [token for delta in self.of(index) for token in delta.token_ids]


def make_jobs(count: int, vocab_size: int, seed: int) -> list[Job]:
    draw = random.Random(seed)
    beginnings = [golden.ids for golden in read_goldens().values()]
    return [_make_job(index, draw, beginnings, vocab_size) for index in range(count)]


def _make_job(index: int, draw: random.Random, beginnings: list[list[int]], vocab_size: int) -> Job:
    length = min(draw.randint(1, 120), draw.randint(1, 120))
    prompt = draw.choice(beginnings)[: draw.choice([0, length, length])]
    prompt = prompt + [draw.randrange(3, vocab_size) for _ in range(length - len(prompt))]
    sampling = GREEDY
    if draw.random() < 0.6:
        penal = draw.random() < 0.4
        sampling = SamplingParams(
            logit_bias=((prompt[0], -100.0), (500, 3.0)) if draw.random() < 0.2 else (),
            repetition_penalty=draw.choice([1.0, 1.3]) if penal else 1.0,
            frequency_penalty=draw.choice([0.0, 0.5]) if penal else 0.0,
            presence_penalty=draw.choice([0.5, -0.5]) if penal else 0.0,
            temperature=draw.choice([0.0, 0.7, 1.3]),
            top_k=draw.choice([0, 40]),
            top_p=draw.choice([1.0, 0.9]),
            min_p=draw.choice([0.0, 0.05]),
            seed=draw.randrange(2**64),
        )
    caller = draw.choices(["read", "close", "abort", "refused"], [70, 14, 14, 2])[0]
    if caller == "refused":
        prompt = prompt * 300
    request = Request(
        request_id=f"soak-{index}",
        prompt_ids=tuple(prompt[:CONTEXT]),
        sampling=sampling,
        max_tokens=max(draw.randint(1, 24), draw.randint(1, 24)),
        stop=tuple(draw.sample(STOPS, draw.randint(1, 3))) if draw.random() < 0.3 else (),
        stop_ids=(draw.randrange(vocab_size), 28, 30) if draw.random() < 0.1 else (),
        ignore_eos=draw.random() < 0.1,
        n=draw.choices([1, 2, 3], [70, 15, 15])[0],
        logprobs=draw.choice([0, 1, 5]) if draw.random() < 0.25 else None,
        prompt_logprobs=draw.choice([0, 3]) if draw.random() < 0.1 else None,
        use_cache=draw.random() < 0.9,
    )
    return Job(request, caller, draw.randint(1, 6))


def call(engine: ThreadedEngine, job: Job) -> Outcome:
    """Do what the job says."""
    outcome = Outcome(job)
    deltas = stream(engine, job.request)
    for count, delta in enumerate(deltas, 1):
        outcome.deltas.append(delta)
        if count == job.after and job.caller == "abort":
            engine.abort_request(job.request.request_id)
        if count == job.after and job.caller == "close":
            break
    deltas.close()  # type: ignore[attr-defined]  # a generator, said to be an iterator
    return outcome


def call_all(
    engine: ThreadedEngine, jobs: list[Job], limit_s: float, on_done: Callable[[int], None] = lambda count: None
) -> list[Outcome]:
    """All jobs from 16 threads; `on_done` hears how many are done. Fails, with every thread's stack, past the limit."""
    todo: queue.SimpleQueue[Job] = queue.SimpleQueue()
    done: queue.SimpleQueue[Outcome | BaseException] = queue.SimpleQueue()
    for job in jobs:
        todo.put(job)

    def work() -> None:
        with suppress(queue.Empty):
            while True:
                job = todo.get_nowait()
                try:
                    done.put(call(engine, job))
                except BaseException as error:  # noqa: BLE001 - the test's own thread raises it
                    done.put(error)

    for _ in range(NUM_THREADS):
        threading.Thread(target=work, daemon=True).start()
    deadline = time.monotonic() + limit_s
    outcomes: list[Outcome] = []
    while len(outcomes) < len(jobs):
        try:
            result = done.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            faulthandler.dump_traceback()
            names = {job.request.request_id for job in jobs} - {each.job.request.request_id for each in outcomes}
            pytest.fail(f"after {limit_s:.0f} s these have not ended: {sorted(names)}")
        if isinstance(result, BaseException):
            raise result
        outcomes.append(result)
        on_done(len(outcomes))
    return outcomes


def check(outcome: Outcome, tokenizer: Tokenizer) -> None:
    """Every answer ended once and for the right reason, and its text, tokens, logprobs and counts agree."""
    job = outcome.job
    request, deltas = job.request, outcome.deltas
    assert {delta.request_id for delta in deltas} == {request.request_id}
    if job.caller == "refused":
        assert [delta.finish_reason for delta in deltas] == ["error"]
        assert "context" in (deltas[0].error or "")
        return
    num_ended = sum(delta.finish_reason is not None for delta in deltas)
    if num_ended < request.n:
        assert job.caller == "close"
        assert len(deltas) == job.after
    num_end_tokens = sum(_check_answer(outcome, index, tokenizer) for index in range(request.n))
    _check_prompt_logprobs(outcome)
    if num_ended == request.n:
        assert [delta.usage is not None for delta in deltas] == [False] * (len(deltas) - 1) + [True]
        usage = deltas[-1].usage
        assert usage is not None
        assert usage.prompt_tokens == len(request.prompt_ids)
        assert 0 <= usage.cached_tokens < len(request.prompt_ids)
        assert request.use_cache or usage.cached_tokens == 0
        num_told = sum(len(delta.token_ids) for delta in deltas)
        assert usage.completion_tokens == num_told + num_end_tokens


def _check_answer(outcome: Outcome, index: int, tokenizer: Tokenizer) -> int:
    """Check one answer; 1 if it ended with an end token, which is drawn and not told."""
    request = outcome.job.request
    deltas, tokens = outcome.of(index), outcome.tokens(index)
    reasons = [delta.finish_reason for delta in deltas if delta.finish_reason is not None]
    text = "".join(delta.text for delta in deltas)
    said = b"".join(map(tokenizer.token_bytes, tokens))
    _check_logprobs(outcome, index)
    assert request.max_tokens is not None
    assert len(tokens) <= request.max_tokens
    if not request.ignore_eos:
        assert not {*tokens} & {*tokenizer.stop_ids, *request.stop_ids}
    if not reasons:
        assert outcome.job.caller == "close"
        assert said.decode(errors="replace").startswith(text.rstrip("�"))
        return 0
    assert len(reasons) == 1, f"it ended {len(reasons)} times"
    assert deltas[-1].finish_reason is not None, "something after the end"
    stops = [] if request.ignore_eos else [stop.encode() for stop in request.stop]
    found = [(start + len(stop), start) for stop in stops if (start := said.find(stop)) >= 0]
    if reasons[0] == "stop":
        assert not request.ignore_eos
        if found:
            assert text == said[: min(found)[1]].decode(errors="replace")
        else:
            assert text == said.decode(errors="replace")
        return 0 if found else 1
    assert not found, "it went on past a stop string"
    assert text == said.decode(errors="replace")
    if reasons[0] == "length":
        assert len(tokens) == request.max_tokens
    else:
        assert reasons[0] == "abort"
        assert outcome.job.caller in ("abort", "close")
    return 0


def _check_logprobs(outcome: Outcome, index: int) -> None:
    request = outcome.job.request
    for delta in outcome.of(index):
        if request.logprobs is None:
            assert not delta.logprobs
            continue
        assert [entry.token for entry in delta.logprobs] == list(delta.token_ids)
        for entry in delta.logprobs:
            _check_entry(entry, request.logprobs)
            if request.sampling == GREEDY and request.logprobs:
                assert entry.top[0][1] == entry.logprob, "greedy, and not the likeliest"


def _check_prompt_logprobs(outcome: Outcome) -> None:
    request = outcome.job.request
    told = [delta for delta in outcome.deltas if delta.prompt_logprobs]
    if request.prompt_logprobs is None:
        assert not told
    elif told:
        assert told == outcome.of(0)[:1]
        assert [entry.token for entry in told[0].prompt_logprobs] == list(request.prompt_ids[1:])
        for entry in told[0].prompt_logprobs:
            _check_entry(entry, request.prompt_logprobs)
    else:
        assert len(request.prompt_ids) == 1 or not outcome.tokens(0)


def _check_entry(entry: TokenLogprobs, num_top: int) -> None:
    assert entry.logprob <= 1e-4
    values = [value for _, value in entry.top]
    assert len(values) == num_top
    assert values == sorted(values, reverse=True)


@pytest.fixture(scope="module")
def engine(starter_path: Path) -> Iterator[ThreadedEngine]:
    engine = ThreadedEngine(load_model)
    options = LoadOptions(model=starter_path, context=CONTEXT, total_tokens=POOL_TOKENS, max_sequences=SLOTS)
    load_blocking(engine, options)
    yield engine
    engine.shutdown()


@pytest.fixture(scope="module")
def model(engine: ThreadedEngine) -> LoadedModel:
    assert engine.model is not None
    return engine.model


def check_nothing_is_left(engine: ThreadedEngine) -> None:
    """What was aborted last may still be on the device; then all slots are free, and all pages free or kept."""
    core = engine._engine
    assert core is not None
    _wait(lambda: not core.has_work and not engine._queue)
    state = core.state
    state.check_integrity()
    assert not state.ledger and not engine._streams
    assert not (state.waiting or state.prefilling or state.running or state.in_flight)
    assert state.slots.num_free == state.slots.count
    assert state.pages.num_free + state.cache.num_pages == state.pages.count
    engine.reset()
    _wait(lambda: state.pages.num_free == state.pages.count)
    state.check_integrity()


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20.0
    while not condition():
        assert time.monotonic() < deadline, "the engine does not come to rest"
        time.sleep(0.01)


def check_alone(engine: ThreadedEngine, outcomes: list[Outcome], tokenizer: Tokenizer) -> None:
    """Asked again with nobody beside them, they get the same tokens and logprobs."""
    for outcome in outcomes:
        alone = call(engine, Job(outcome.job.request, "read", 0))
        check(alone, tokenizer)
        for index in range(outcome.job.request.n):
            name = f"{outcome.job.request.request_id} ({index})"
            assert outcome.tokens(index) == alone.tokens(index), name
            crowded, quiet = (
                [entry for delta in each.of(index) for entry in delta.logprobs] for each in (outcome, alone)
            )
            assert crowded == quiet, name


def test_sixteen_callers_and_memory_for_two(engine: ThreadedEngine, model: LoadedModel) -> None:
    outcomes = call_all(engine, make_jobs(60, model.table.limits.vocab_size, seed=3), 240.0)
    for outcome in outcomes:
        check(outcome, model.tokenizer)
    if model.software_adapter:
        whole = [outcome for outcome in outcomes if outcome.job.caller == "read"]
        whole.sort(key=lambda outcome: outcome.job.request.n, reverse=True)
        check_alone(engine, whole[:: len(whole) // 5], model.tokenizer)
    check_nothing_is_left(engine)


@pytest.mark.long
def test_sixteen_callers_for_long(engine: ThreadedEngine, model: LoadedModel) -> None:
    jobs = make_jobs(300, model.table.limits.vocab_size, seed=4)
    held: dict[int, int] = {}

    def weigh(num_done: int) -> None:
        if num_done in (len(jobs) // 2, len(jobs)):
            held[num_done] = psutil.Process().memory_info().rss

    outcomes = call_all(engine, jobs, 900.0, weigh)
    for outcome in outcomes:
        check(outcome, model.tokenizer)
    if model.software_adapter:
        check_alone(engine, [outcome for outcome in outcomes if outcome.job.caller == "read"][::10], model.tokenizer)
    check_nothing_is_left(engine)
    assert held[len(jobs)] - held[len(jobs) // 2] < FLAT_BYTES

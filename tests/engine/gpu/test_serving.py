"""The core on SmolLM2, stepped by hand: the same answer in company, after giving way and from the cache, and what is
not computed twice. Counts rows and steps, never seconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from engine.engine import Engine
from engine.function_table import FunctionTable, RetiredStep, Row, TableLimits
from engine.loader import load_model
from engine.loading import LoadedModel, LoadOptions
from engine.request import FinishReason, Request, TokenLogprobs, Usage
from tests.engine.gpu.conftest import read_goldens, table_of

NUM_TOKENS = 24
MAX_STEPS = 2000


class SpyTable:
    """A loaded table that counts what it is asked to compute. It may be said to have fewer pages than it has."""

    def __init__(self, table: FunctionTable, num_pages: int | None) -> None:
        self._table = table
        self.limits: TableLimits = replace(table.limits, num_pages=num_pages or table.limits.num_pages)
        self.rows: list[Row] = []
        self.on_retired: Callable[[], None] = lambda: None

    def __getattr__(self, name: str) -> object:
        return getattr(self._table, name)

    def embed(self, rows: Sequence[Row]) -> None:
        self.rows += rows
        self._table.embed(rows)

    def retire(self, *, wait: bool) -> RetiredStep | None:
        retired = self._table.retire(wait=wait)
        if retired is not None:
            self.on_retired()
        return retired


class Server:
    """An engine with an empty cache on a model's table, and all that its requests were told.

    With `keep_logits` it waits for every step and keeps the logits of every draw, by request and place in the answer.
    """

    def __init__(self, model: LoadedModel, *, num_pages: int | None = None, keep_logits: bool = False) -> None:
        self.table = SpyTable(model.table, num_pages)
        self.engine = Engine(self.table, model.tokenizer)  # type: ignore[arg-type]  # it passes the rest on
        self.tokenizer = model.tokenizer
        self._gpu_table = table_of(model) if keep_logits else None
        self.tokens: dict[str, list[int]] = defaultdict(list)
        self.text: dict[str, bytes] = defaultdict(bytes)
        self.logprobs: dict[str, list[TokenLogprobs]] = defaultdict(list)
        self.logits: dict[str, dict[int, npt.NDArray[np.float32]]] = defaultdict(dict)
        self.usage: dict[str, Usage] = {}
        self.reason: dict[str, FinishReason] = {}

    def add(self, name: str, prompt: Sequence[int], max_tokens: int = NUM_TOKENS, **options) -> None:
        self.engine.add_request(Request(request_id=name, prompt_ids=tuple(prompt), max_tokens=max_tokens, **options))

    def step(self) -> None:
        before = self.table.last_submitted
        self.engine.step()
        self.engine.state.check_integrity()
        if self._gpu_table is not None and self._gpu_table.last_submitted != before:
            self._keep_logits()
        self.collect()

    def collect(self) -> None:
        for emission in self.engine.take_outbox():
            assert emission.finish_reason != "error", emission.error
            name = emission.request_id if not emission.answer else f"{emission.request_id}/{emission.answer}"
            self.tokens[name] += emission.token_ids
            self.text[name] += emission.text
            self.logprobs[name] += emission.logprobs
            if emission.usage is not None:
                self.usage[emission.request_id] = emission.usage
            if emission.finish_reason is not None:
                self.reason[name] = emission.finish_reason

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        for _ in range(MAX_STEPS):
            if until() or not self.engine.has_work:
                return
            self.step()
        pytest.fail("the engine does not come to an end")

    def ask(self, name: str, prompt: Sequence[int], max_tokens: int = NUM_TOKENS, **options) -> None:
        """Add a request and run until nothing is left; then everything is free, or in the cache."""
        self.add(name, prompt, max_tokens, **options)
        self.run()
        state = self.engine.state
        assert not state.ledger
        assert state.slots.num_free == state.slots.count
        assert state.pages.num_free + state.cache.num_pages == state.pages.count

    def rows_before_first_token(self, name: str, prompt: Sequence[int]) -> int:
        """Add a request, run until it says something; rows computed by then."""
        before = len(self.table.rows)
        self.add(name, prompt, max_tokens=4, ignore_eos=True)
        self.run(lambda: bool(self.tokens[name]))
        return len(self.table.rows) - before

    def _keep_logits(self) -> None:
        step = self.engine.state.in_flight[-1]
        if not step.drawing:
            return
        assert self._gpu_table is not None
        found = self._gpu_table.read_logits(len(step.drawing))
        for sequence, logits in zip(step.drawing, found, strict=True):
            name = sequence.request.request_id
            self.logits[name if not sequence.index else f"{name}/{sequence.index}"][sequence.num_drawn - 1] = logits


class Subject:
    """A prompt and its answer alone from an empty cache, once with logprobs and once with the logits of each draw."""

    def __init__(self, model: LoadedModel) -> None:
        self.model = model
        self.prompt = read_goldens()["unicode"].ids[:90]
        self.draw_options = {"logprobs": 5, "ignore_eos": True}
        server = Server(model)
        server.ask("subject", self.prompt, **self.draw_options)
        self.tokens, self.logprobs = server.tokens["subject"], server.logprobs["subject"]
        server = Server(model, keep_logits=True)
        server.ask("subject", self.prompt, ignore_eos=True)
        self.logits = server.logits["subject"]
        assert len(self.tokens) == len(self.logits) == NUM_TOKENS
        assert server.tokens["subject"] == self.tokens

    def options(self, keep_logits: bool) -> dict:
        """Logits are kept of draws that ask for no logprobs, so that both kinds of step are seen."""
        return {"ignore_eos": True} if keep_logits else self.draw_options

    def check(self, server: Server, name: str = "subject") -> None:
        """The same bits on a software adapter; elsewhere roundings may differ, and a close choice with them."""
        if self.model.software_adapter:
            assert server.tokens[name] == self.tokens
            assert server.logprobs[name] in ([], self.logprobs)
        for place, logits in server.logits[name].items():
            if self.model.software_adapter:
                np.testing.assert_array_equal(logits, self.logits[place], f"token {place}")
            elif server.tokens[name][:place] == self.tokens[:place]:
                np.testing.assert_allclose(logits, self.logits[place], atol=5e-2, rtol=0)


@pytest.fixture(scope="module")
def model(model_of: Callable[..., LoadedModel], starter_path: Path) -> LoadedModel:
    return model_of(starter_path, kv_type="f16")


@pytest.fixture(scope="module")
def subject(model: LoadedModel) -> Subject:
    return Subject(model)


@pytest.fixture(params=[False, True], ids=["logprobs", "logits"])
def keep_logits(request: pytest.FixtureRequest) -> bool:
    return request.param


def test_the_same_in_a_batch_of_eight(subject: Subject, keep_logits: bool) -> None:
    """Four others answer before it comes, three come with it."""
    server = Server(subject.model, keep_logits=keep_logits)
    options = subject.options(keep_logits)
    for index in range(4):
        server.add(f"early-{index}", _others(subject, index), 90, **options)
    server.run(lambda: bool(server.tokens["early-0"]))
    server.add("subject", subject.prompt, **options)
    for index in range(4, 7):
        server.add(f"late-{index}", _others(subject, index), 90, **options)
    together = 0
    while "subject" not in server.reason:
        server.step()
        together += len(server.engine.state.running) == 8
    assert together >= 12
    subject.check(server)
    server.engine.end_all("abort")
    server.run()


@pytest.mark.parametrize("use_cache", [False, True])
def test_the_same_after_giving_way(subject: Subject, keep_logits: bool, use_cache: bool) -> None:
    """An older one grows until the subject has to let go of its pages, some tokens into its answer."""
    server = Server(subject.model, num_pages=11, keep_logits=keep_logits)
    options = subject.options(keep_logits) | {"use_cache": use_cache}
    server.add("older", _others(subject, 0), 70, **options)
    server.run(lambda: len(server.tokens["older"]) >= 46)
    server.add("subject", subject.prompt, **options)
    server.run(lambda: bool(server.tokens["subject"]))
    server.run(lambda: server.engine.state.num_preempted > 0)
    num_told = len(server.tokens["subject"])
    assert 0 < num_told < NUM_TOKENS
    assert [each.request.request_id for each in server.engine.state.waiting] == ["subject"]
    server.run()
    assert server.reason == {"older": "length", "subject": "length"}
    subject.check(server)


@pytest.mark.parametrize("num_seen", [16, 37, 90])
def test_the_same_from_a_warm_cache(subject: Subject, keep_logits: bool, num_seen: int) -> None:
    """Another prompt has begun alike; where it ended inside a page, that page is copied."""
    server = Server(subject.model, keep_logits=keep_logits)
    options = subject.options(keep_logits)
    server.ask("before", [*subject.prompt[:num_seen], 500, 501, 502], 5, **options)
    server.ask("subject", subject.prompt, **options)
    assert server.usage["subject"].cached_tokens == min(num_seen, len(subject.prompt) - 1)
    subject.check(server)


def test_the_same_for_each_of_three_answers(subject: Subject, keep_logits: bool) -> None:
    server = Server(subject.model, keep_logits=keep_logits)
    server.ask("subject", subject.prompt, n=3, **subject.options(keep_logits))
    for name in ("subject", "subject/1", "subject/2"):
        subject.check(server, name)


@pytest.mark.parametrize(("max_tokens", "reason", "num_not_fed"), [(40, "stop", 0), (5, "length", 1)])
def test_a_second_turn_computes_only_what_is_new(
    model: LoadedModel, max_tokens: int, reason: FinishReason, num_not_fed: int
) -> None:
    """The end token is never needed, and of an answer that was cut short the last token was drawn and never fed."""
    server = Server(model)
    template, tokenizer = model.chat_template, model.tokenizer
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    first = template.prompt_ids(messages, tokenizer)
    server.ask("first", first, max_tokens)
    assert server.reason["first"] == reason
    messages += [
        {"role": "assistant", "content": server.text["first"].decode()},
        {"role": "user", "content": "And of Italy?"},
    ]
    second = template.prompt_ids(messages, tokenizer)
    seen = [*first, *server.tokens["first"]]
    assert second[: len(seen)] == seen, "the text of the answer has to be these tokens again"
    before = len(server.table.rows)
    server.ask("second", second, 3)
    cached = server.usage["second"].cached_tokens
    assert cached == len(seen) - num_not_fed
    prompt_rows = [row for row in server.table.rows[before:] if row.position < len(second)]
    assert [row.position for row in prompt_rows] == list(range(cached, len(second)))
    assert [row.token for row in prompt_rows] == second[cached:]


def test_a_prompt_of_600_tokens_seen_before(model: LoadedModel) -> None:
    check_seen_before(Server(model), _text_ids(model, 600))


@pytest.mark.long
def test_a_prompt_of_2000_tokens_seen_before(starter_path: Path) -> None:
    model = load_model(LoadOptions(model=starter_path, context=2048), lambda progress: None, lambda: False)
    try:
        check_seen_before(Server(model), _text_ids(model, 2000))
    finally:
        model.table.close()


def check_seen_before(server: Server, prompt: list[int]) -> None:
    """Its last token is computed again, and a few that follow may be on their way when the first is told."""
    assert server.rows_before_first_token("cold", prompt) >= len(prompt)
    server.run()
    assert 0 < server.rows_before_first_token("warm", prompt) <= len(prompt) / 20
    server.run()
    assert server.tokens["cold"] == server.tokens["warm"]
    assert server.usage["warm"].cached_tokens == len(prompt) - 1


def test_a_stream_goes_on_while_a_long_prompt_is_computed(model: LoadedModel) -> None:
    """Every step of the prefill also gives the stream a token; after each step that retires, the stream has got it."""
    server = Server(model)
    state = server.engine.state
    prompt = _text_ids(model, 400)
    with_stream: list[bool] = []

    def note() -> None:
        step = state.in_flight[0]
        if any(each.request.request_id == "long" for each, _ in step.chunks):
            with_stream.append("stream" in [each.request.request_id for each in step.drawing])

    server.table.on_retired = note
    server.add("stream", prompt[:12], 200, ignore_eos=True, use_cache=False)
    server.run(lambda: len(server.tokens["stream"]) >= 3)
    told_before = len(server.tokens["stream"])
    server.add("long", prompt, 2, ignore_eos=True, use_cache=False)
    server.run(lambda: bool(server.tokens["long"]))
    assert len(with_stream) >= len(prompt) / server.table.limits.max_rows
    assert all(with_stream), "a step of the prefill left the stream without a token"
    assert len(server.tokens["stream"]) - told_before >= len(with_stream)
    server.engine.abort_request("stream")
    server.run()
    server.collect()
    assert server.reason == {"long": "length", "stream": "abort"}


def _others(subject: Subject, index: int) -> list[int]:
    """Seven prompts of 7 to 31 tokens that share nothing with the subject's."""
    ids = subject.prompt[::-1]
    return [1000 + index, *ids[: 6 + 4 * index]]


def _text_ids(model: LoadedModel, count: int) -> list[int]:
    """Numbers in words, so that no stretch of the prompt is like another."""
    sentences = (f"House {number} has {number * 37 % 101} windows." for number in range(count))
    return model.tokenizer.encode(" ".join(sentences))[:count]

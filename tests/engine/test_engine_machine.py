"""Random lives of the engine: requests come, fork, give way, are aborted, meet faults and end; the cache is evicted and
reset, the model loaded again. The books balance after each step, and every answer is the one that the plain rule gives.
"""

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from engine.errors import RequestRejected
from engine.fake_table import PAGE_BYTES, Fault, continuation, fold, pretend_logprobs, small_limits
from engine.request import Request, SamplingParams
from engine.tiers.host import HostTier
from engine.tiers.store import KvStore

END = 299
CONTEXT = 96
PREFIXES = [[7] * 40, [7] * 23 + [8] * 20, [9]]
CALLS = ["set_pages", "set_counts", "begin_forward", "copy_pages", "embed", "prefill", "decode"]
CALLS += ["logits", "sample", "end_forward", "retire", "load_pages", "save_pages"]


def next_token(state: int, last: int) -> int:
    return END if state % 29 == 0 else 97 + state % 3


def expected_logprobs(before, tokens, num_top):
    if num_top is None:
        return []
    state, expected = 0, []
    for token in before:
        state = fold(state, token)
    for token in tokens:
        expected.append(pretend_logprobs(state, token, num_top))
        state = fold(state, token)
    return expected


def expected_answer(request: Request, limit: int) -> tuple[list[int], str, str]:
    """Tokens, text and reason by the plain rule, one token after another."""
    tokens: list[int] = []
    text = ""
    for token in continuation(request.prompt_ids, limit, next_token):
        if token == END and not request.ignore_eos:
            return tokens, text, "stop"
        tokens.append(token)
        text += chr(token) if token < 256 else ""
        if not request.ignore_eos:
            for stop in request.stop:
                if text.endswith(stop):
                    return tokens, text[: -len(stop)], "stop"
    return tokens, text, "length"


class Machine(RuleBasedStateMachine):
    """`make_driver` is set by the test; its driver checks integrity after every step."""

    make_driver: Callable

    @initialize(
        delay=st.integers(1, 4),
        max_rows=st.integers(1, 24),
        max_samples=st.integers(1, 4),
        max_slots=st.integers(1, 4),
        num_pages=st.integers(6, 14),
        kept_bytes=st.sampled_from([None, 8 * 4 * PAGE_BYTES, 1 << 20]),
        reach=st.sampled_from([(0, 0)] * 4 + [(16, 0), (17, 4), (30, 1), (40, 20)]),
        data=st.data(),
    )
    def start(self, delay, max_rows, max_samples, max_slots, num_pages, kept_bytes, reach, data):
        window, sinks = reach
        self.context = 2 * CONTEXT if window else CONTEXT
        limits = small_limits(
            context_length=self.context,
            max_rows=max_rows,
            max_samples=max_samples,
            max_slots=max_slots,
            num_pages=num_pages - 3 if window else num_pages,  # fewer than the longest sequence has
            max_in_flight=data.draw(st.integers(1, 4)),
            window=window,
            sinks=sinks,
        )
        self.host = HostTier(kept_bytes or 0)
        store = None if kept_bytes is None else KvStore(b"a model", PAGE_BYTES, self.host, None, None)
        self.driver = type(self).make_driver(limits, delay=delay, next_token=next_token, store=store)
        self.requests: dict[str, Request] = {}
        self.rooms: dict[str, int] = {}
        self.aborted: set[str] = set()
        self.num_faults = 0

    @rule(
        prefix=st.sampled_from(PREFIXES) | st.just([]),
        prompt=st.lists(st.integers(0, 255), min_size=1, max_size=40),
        max_tokens=st.none() | st.integers(1, 30),
        stop=st.sampled_from([(), (), ("ab",), ("abc", "b")]),
        ignore_eos=st.booleans(),
        n=st.sampled_from([1, 1, 1, 2, 3]),
        use_cache=st.sampled_from([True, True, True, False]),
        pin=st.sampled_from([False, False, False, True]),
        logprobs=st.none() | st.integers(0, 2),
        prompt_logprobs=st.sampled_from([None, None, None, 0, 2]),
        presence_penalty=st.sampled_from([0.0, 0.0, 1.0]),
    )
    def add(self, prefix, prompt, presence_penalty, **options):
        self._add(prefix + prompt, presence_penalty, options)

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), extra=st.lists(st.integers(0, 255), min_size=1, max_size=5))
    def go_on_with_a_chat(self, data, extra):
        name = data.draw(st.sampled_from(sorted(self.requests)))
        prompt = [*self.requests[name].prompt_ids, *self.driver.tokens(name), *extra]
        if len(prompt) < self.context:
            self._add(prompt, 0.0, {"max_tokens": 10})

    def _add(self, prompt, presence_penalty, options):
        name = str(len(self.requests))
        options["sampling"] = SamplingParams(temperature=0.0, presence_penalty=presence_penalty)
        try:
            self.driver.add(name, prompt, **options)
        except RequestRejected:
            return  # pinned prompts may leave too little room
        self.requests[name] = Request(request_id=name, prompt_ids=tuple(prompt), **options)
        self.rooms[name] = self.driver.engine.state.ledger[name].answers[0].limit

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def abort(self, data):
        name = data.draw(st.sampled_from(sorted(self.requests)))
        if self.driver.reason(name) is None:
            self.aborted.add(name)
        self.driver.abort(name)

    @rule()
    def preempt_the_youngest(self):
        state = self.driver.engine.state
        holders = [*state.prefilling, *state.running]
        if holders:
            state.preempt(max(holders, key=lambda sequence: sequence.order))
            state.check_integrity()

    @rule(count=st.integers(1, 5))
    def evict(self, count):
        state = self.driver.engine.state
        state.cache.evict(count, state.table.last_submitted)
        state.check_integrity()

    @precondition(lambda self: len(self.host))
    @rule(data=st.data())
    def lose_a_kept_block(self, data):
        keys = sorted(self.host._blocks)
        self.host.remove([data.draw(st.sampled_from(keys))])

    @rule()
    def reset_the_cache(self):
        self.driver.clear()

    @rule()
    def reload(self):
        self.driver.reload()

    @rule(count=st.integers(1, 6))
    def step(self, count):
        for _ in range(count):
            self.driver.step()

    @precondition(lambda self: self.num_faults < 3)
    @rule(call=st.sampled_from(CALLS), ahead=st.integers(1, 3))
    def plan_fault(self, call, ahead):
        self.driver.table.faults.append(Fault(call, self.driver.table.last_submitted + ahead, RuntimeError("planned")))
        self.num_faults += 1

    @precondition(lambda self: self.requests)
    @rule()
    def finish(self):
        self.driver.run(60_000)

    def teardown(self):
        if not hasattr(self, "driver"):
            return
        self.driver.run(60_000)
        self.driver.clear()
        for name, request in self.requests.items():
            for index in range(request.n):
                self._check_answer(name, request, index)
            deltas = self.driver.deltas[name]
            assert [delta.usage is not None for delta in deltas] == [False] * (len(deltas) - 1) + [True]

    def _check_answer(self, name, request, index):
        driver = self.driver
        tokens, text, reason = expected_answer(request, self.rooms[name])
        got, told = driver.reason(name, index), driver.tokens(name, index)
        if got is None:
            assert driver.last(name).finish_reason == "error"
        elif got == "abort":
            assert name in self.aborted
        elif got == "error":
            assert self.num_faults, driver.last(name).error
            error = driver.last(name).error
            assert "planned" in error or "could not be read back" in error, error
        else:
            assert (told, driver.text(name, index), got) == (tokens, text, reason)
        assert told == tokens[: len(told)]
        deltas = driver.answer(name, index)
        logprobs = [entry for delta in deltas for entry in delta.logprobs]
        assert logprobs == expected_logprobs(request.prompt_ids, told, request.logprobs)
        if told and index == 0:
            assert list(deltas[0].prompt_logprobs) == expected_logprobs(
                request.prompt_ids[:1], request.prompt_ids[1:], request.prompt_logprobs
            )


def run_machine(make_driver, *, examples: int, steps: int) -> None:
    class Bound(Machine):
        pass

    Bound.make_driver = staticmethod(make_driver)
    run_state_machine_as_test(
        Bound,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
        ),
    )


def test_every_request_ends_as_it_should(make_driver):
    run_machine(make_driver, examples=50, steps=40)


@pytest.mark.long
def test_every_request_ends_as_it_should_for_long(make_driver):
    run_machine(make_driver, examples=200, steps=100)

"""Random lives of the engine: requests come, are aborted, meet faults and end; the books balance after each step."""

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

from engine.fake_table import Fault, continuation, small_limits
from engine.request import Request

END = 299
CONTEXT = 96
CALLS = ["set_pages", "begin_forward", "embed", "prefill", "decode", "logits", "sample", "end_forward", "retire"]


def next_token(state: int, last: int) -> int:
    return END if state % 29 == 0 else 97 + state % 3


def expected_answer(request: Request) -> tuple[list[int], str, str]:
    """Tokens, text and reason by the plain rule, one token after another."""
    limit = CONTEXT - len(request.prompt_ids)
    limit = limit if request.max_tokens is None else min(limit, request.max_tokens)
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
        data=st.data(),
    )
    def start(self, delay, max_rows, max_samples, max_slots, num_pages, data):
        limits = small_limits(
            context_length=CONTEXT,
            max_rows=max_rows,
            max_samples=max_samples,
            max_slots=max_slots,
            num_pages=num_pages,
            max_in_flight=data.draw(st.integers(1, 4)),
        )
        self.driver = type(self).make_driver(limits, delay=delay, next_token=next_token)
        self.requests: dict[str, Request] = {}
        self.aborted: set[str] = set()
        self.num_faults = 0

    @rule(
        prompt=st.lists(st.integers(0, 255), min_size=1, max_size=60),
        max_tokens=st.none() | st.integers(1, 30),
        stop=st.sampled_from([(), ("ab",), ("abc", "b")]),
        ignore_eos=st.booleans(),
    )
    def add(self, prompt, max_tokens, stop, ignore_eos):
        name = str(len(self.requests))
        options = {"max_tokens": max_tokens, "stop": stop, "ignore_eos": ignore_eos}
        self.driver.add(name, prompt, **options)
        self.requests[name] = Request(request_id=name, prompt_ids=tuple(prompt), **options)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def abort(self, data):
        name = data.draw(st.sampled_from(sorted(self.requests)))
        if self.driver.reason(name) is None:
            self.aborted.add(name)
        self.driver.abort(name)

    @rule(count=st.integers(1, 6))
    def step(self, count):
        for _ in range(count):
            self.driver.step()

    @precondition(lambda self: self.num_faults < 3)
    @rule(call=st.sampled_from(CALLS), ahead=st.integers(1, 3))
    def plan_fault(self, call, ahead):
        self.driver.table.faults.append(Fault(call, self.driver.table.last_submitted + ahead, RuntimeError("planned")))
        self.num_faults += 1

    @rule()
    def finish(self):
        self.driver.run()

    def teardown(self):
        if not hasattr(self, "driver"):
            return
        self.driver.run()
        for name, request in self.requests.items():
            tokens, text, reason = expected_answer(request)
            got = self.driver.reason(name)
            if got == "abort":
                assert name in self.aborted
            elif got == "error":
                assert self.num_faults
                error = self.driver.last(name).error
                assert "planned" in error or "could not be read back" in error
            else:
                assert (self.driver.tokens(name), self.driver.text(name), got) == (tokens, text, reason)
            assert self.driver.tokens(name) == tokens[: len(self.driver.tokens(name))]


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
    run_machine(make_driver, examples=50, steps=60)


@pytest.mark.long
def test_every_request_ends_as_it_should_for_long(make_driver):
    run_machine(make_driver, examples=200, steps=100)

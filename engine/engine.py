"""Engine: one model's requests, advanced one step at a time. No thread, no lock, no text.

step() retires what the device has finished, then lets exactly one action submit work. What the requests have to say
collects in an outbox. Only the engine's background thread calls it (tests call it directly).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from engine.actions import StepFailed, default_actions
from engine.errors import ContextTooLong, DeviceFailed, InvalidParameter, QueueFull, RequestRejected
from engine.function_table import FunctionTable, RetiredStep
from engine.request import FinishReason, Request
from engine.request_state import RequestState, Vocabulary
from engine.state import Emission, EngineState, InFlightStep

logger = logging.getLogger(__name__)

MAX_WAITING = 1024
"""Requests that may wait; more are refused, so that a runaway client meets a limit before memory does."""


class Engine:
    """The serving core around one loaded model. It does not own the table: whoever made it closes it."""

    def __init__(
        self, table: FunctionTable, vocabulary: Vocabulary, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.state = EngineState(table, vocabulary, clock)
        self._actions = default_actions()

    @property
    def has_work(self) -> bool:
        """Whether step() has anything to do: open requests, or steps whose memory is still to be taken back."""
        return bool(self.state.ledger or self.state.in_flight)

    def add_request(self, request: Request, arrived: float | None = None) -> None:
        """Queue a request; `arrived` (the clock's seconds) is when its caller asked. Raises RequestRejected."""
        state = self.state
        if request.request_id in state.ledger:
            raise InvalidParameter(f"A request with the id {request.request_id} is open already. Use another id.")
        if len(state.waiting) >= MAX_WAITING:
            raise QueueFull(f"{MAX_WAITING} requests are waiting already. Try again when some have finished.")
        limit = self._tokens_to_draw(request)
        state.enqueue(RequestState(request, limit, state.clock() if arrived is None else arrived))

    def abort_request(self, request_id: str) -> None:
        """End an open request with "abort"; one that is not open is left alone."""
        sequence = self.state.ledger.get(request_id)
        if sequence is not None:
            self.state.finish(sequence, "abort")

    def end_all(self, reason: FinishReason, error: str | None = None) -> None:
        """End every open request. Their memory is free when their last step has retired."""
        for sequence in list(self.state.ledger.values()):
            self.state.finish(sequence, reason, error=error)

    def take_outbox(self) -> list[Emission]:
        """What the requests have to tell since the last call, in order."""
        outbox, self.state.outbox = self.state.outbox, []
        return outbox

    def step(self) -> None:
        """Retire, then submit one step; wait for the oldest one where nothing else can be done.

        A failure ends the requests that it belongs to. Raises DeviceFailed where there is no going on.
        """
        state = self.state
        while state.in_flight and self._retire_oldest(wait=False):
            pass
        if len(state.in_flight) >= state.limits.max_in_flight:
            self._retire_oldest(wait=True)
        try:
            acted = any(action.step(state) for action in self._actions)
        except StepFailed as failure:
            logger.error("A step could not be submitted: %s", failure, exc_info=failure.__cause__)
            state.fail(failure.participants, f"The model failed while answering ({failure}). Send the message again.")
            return
        if acted:
            return
        if state.in_flight:
            self._retire_oldest(wait=True)
        elif state.ledger:
            # Unreachable unless the books are wrong: everything is free and still nobody can go on.
            state.fail(state.ledger.values(), "The engine lost track of this request. Send the message again.")

    def _retire_oldest(self, *, wait: bool) -> bool:
        """Take one step back from the device, if it is done; False if it is not."""
        state = self.state
        try:
            retired = state.table.retire(wait=wait)
        except DeviceFailed:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a table raises ends this step's requests, no others
            self._give_up_oldest(error)
            return True
        if retired is None:
            return False
        step = state.retired(retired.step)
        if step is not None:
            self._commit(step, retired)
        return True

    def _give_up_oldest(self, error: Exception) -> None:
        """The oldest step's tokens cannot be read: end its requests, if the table at least let go of the step."""
        state = self.state
        if state.table.in_flight >= len(state.in_flight):
            raise DeviceFailed(f"The GPU did not finish a step ({type(error).__name__}: {error}).") from error
        logger.error("A step's tokens could not be read", exc_info=error)
        lost = state.in_flight[0]
        state.retired(lost.number)
        state.fail(lost.participants, "The answer could not be read back from the GPU. Send the message again.")

    def _commit(self, step: InFlightStep, retired: RetiredStep) -> None:
        """Commit a retired step's tokens and post-process their requests. Tokens of finished requests are dropped."""
        state = self.state
        now = state.clock()
        if len(retired.tokens) != len(step.drawing):
            state.fail(step.participants, "The model returned a wrong number of tokens. Send the message again.")
            return
        for sequence, token in zip(step.drawing, retired.tokens, strict=True):
            if sequence.finish_reason is not None:
                continue
            try:
                self._post_process(sequence, token, now)
            except Exception:
                # Whatever is wrong with this token (say, an id that the vocabulary lacks) concerns its request alone.
                logger.exception("Request %s: token %d could not be processed", sequence.request.request_id, token)
                state.fail([sequence], "The model gave a token that could not be read. Send the message again.")

    def _post_process(self, sequence: RequestState, token: int, now: float) -> None:
        state = self.state
        if not 0 <= token < state.limits.vocab_size:
            raise ValueError(f"token {token} is outside the vocabulary")
        sequence.note_token_time(now)
        sequence.commit_token(token)
        token_ids, text, reason = sequence.delta_request_return(state.vocabulary)
        if reason is not None:
            state.finish(sequence, reason, token_ids=token_ids, text=text)
        else:
            state.outbox.append(Emission(sequence.request.request_id, token_ids, text))

    def _tokens_to_draw(self, request: Request) -> int:
        """How many tokens the request may get, at least 1. Raises RequestRejected where it can never be honoured."""
        state = self.state
        prompt, context, room = len(request.prompt_ids), state.limits.context_length, state.max_tokens_in_pool
        if prompt >= context:
            raise ContextTooLong(
                f"This prompt has {prompt} tokens; the context holds {context}. "
                "Shorten it, or load the model with a larger context."
            )
        if min(request.prompt_ids) < 0 or max(request.prompt_ids) >= state.limits.vocab_size:
            raise InvalidParameter("The prompt has a token that this model does not know. Encode it with this model.")
        limit = context - prompt if request.max_tokens is None else min(request.max_tokens, context - prompt)
        if prompt + (1 if request.max_tokens is None else limit) > room:
            raise RequestRejected(
                f"This request needs memory for {prompt + limit} tokens; there is room for {room}. "
                "Shorten it, ask for fewer tokens, or load the model with a smaller context."
            )
        return min(limit, room - prompt)

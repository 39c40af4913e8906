"""What an engine action is: one scheduling decision, and the step that it submits.

Knows neither the other actions nor their order. Actions run on the engine's background thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from engine.errors import OutOfMemory
from engine.request_state import RequestState
from engine.state import EngineState


class EngineAction(Protocol):
    """One way to spend a step. The engine tries its actions in a fixed order; the first that has work wins."""

    def step(self, state: EngineState) -> bool:
        """Submit one step to the device without waiting for it; False, with nothing changed, if there is no work.

        Raises StepFailed when the step could not be submitted, DeviceFailed when the device is gone.
        """
        ...


class StepFailed(Exception):
    """A step could not be submitted. Its requests end; the engine goes on."""

    def __init__(self, participants: Sequence[RequestState], cause: BaseException) -> None:
        super().__init__(f"{type(cause).__name__}: {cause}")
        self.participants = participants
        self._cause = cause

    @property
    def sentence(self) -> str:
        """What to tell the callers of its requests."""
        if isinstance(self._cause, OutOfMemory):
            return (
                "The graphics device has too little memory left for this request. Penalties, bias and logprobs need "
                "some of their own: leave them out, or load the model with a smaller context."
            )
        if isinstance(self._cause, MemoryError):
            return "There is not enough memory for this answer. Close other programs and send the message again."
        return f"The model failed while answering ({self}). Send the message again."

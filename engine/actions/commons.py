"""Plumbing that actions share: admitting a request, and recording and submitting one step on the table.

Knows the order of a table's calls, so that no action has to. Runs on the engine's background thread.
"""

from __future__ import annotations

from collections.abc import Callable

from engine.actions.base import StepFailed
from engine.errors import DeviceFailed
from engine.function_table import Row, Sample
from engine.request_state import RequestState
from engine.state import EngineState, InFlightStep


def admit_waiting(state: EngineState) -> None:
    """Admit in order of arrival until the first request that has to wait; none overtakes it, so none starves."""
    while state.waiting and state.can_admit(state.waiting[0]):
        sequence = state.admit()
        try:
            state.table.set_pages(sequence.slot, 0, sequence.pages)
        except DeviceFailed:
            raise
        except Exception as error:
            raise StepFailed([sequence], error) from error


def draw_after(row: int, position: int, sequence: RequestState) -> Sample:
    """Draw the token that follows the one at `position`, from the logits of this step's row."""
    return Sample(row, sequence.slot, position + 1, sequence.request.sampling)


def submit_step(
    state: EngineState,
    run_layers: Callable[[], None],
    rows: list[Row],
    samples: list[Sample],
    participants: list[RequestState],
    drawing: list[RequestState],
) -> None:
    """Record one step, submit it, and put it on the books. `drawing` has one request per sample."""
    table = state.table
    try:
        table.begin_forward()
        table.embed(rows)
        run_layers()
        if samples:
            table.logits([sample.row for sample in samples])
            table.sample(samples)
        number = table.end_forward()
    except DeviceFailed:
        raise
    except Exception as error:
        raise StepFailed(participants, error) from error
    state.in_flight.append(InFlightStep(number, participants, drawing))
    for sequence in drawing:
        sequence.num_drawn += 1

"""Plumbing that actions share: admitting sequences, choosing who decodes, and recording and submitting one step.

Knows the order of a table's calls, so that no action has to. Runs on the engine's background thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from engine.actions.base import StepFailed
from engine.errors import DeviceFailed, OutOfMemory
from engine.function_table import PAGE_SIZE, Row, Sample
from engine.request_state import RequestState
from engine.saving import Saving
from engine.state import EngineState, InFlightStep
from engine.window import NO_PAGE

MAX_OVERTAKEN = 8
"""Sequences that may be admitted before the first that has to wait for memory."""

_MOST_TRIES = 8
"""Waiting sequences for which memory is looked for in a step."""


@dataclass(slots=True)
class StepPlan:
    """Rows and samples of a step as they are put together, and whom they belong to. See InFlightStep."""

    rows: list[Row] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    drawing: list[RequestState] = field(default_factory=list)
    chunks: list[tuple[RequestState, int]] = field(default_factory=list)
    forced: list[Sample] = field(default_factory=list)
    scored: list[RequestState] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    num_prompt_rows: int = 0

    def decode(self, sequence: RequestState) -> None:
        """Feed the last token that was drawn, known or not, and draw the next."""
        position = sequence.next_position
        self.rows.append(Row(sequence.next_input, position, sequence.slot))
        self.draw_after(position, sequence)

    def draw_after(self, position: int, sequence: RequestState) -> None:
        """Draw the token that follows the one at `position`, from the logits of the last row."""
        top = sequence.request.logprobs
        row = len(self.rows) - 1
        self.samples.append(Sample(row, sequence.slot, position + 1, sequence.sampling, top))
        self.drawing.append(sequence)


def admit_waiting(state: EngineState) -> None:
    """Admit in order of arrival. A later one may pass the first that has to wait for memory, a few times only.

    Nobody is admitted while another lacks the page that it has reached: it would take what was freed for that.
    """
    if state.is_blocked() or any(sequence.lacks_page for sequence in [*state.running, *state.prefilling]):
        return
    first: RequestState | None = None
    num_tried = 0
    for sequence in list(state.waiting):
        if not state.slots.num_free:
            return
        if num_tried >= _MOST_TRIES or (first is not None and first.overtaken >= MAX_OVERTAKEN):
            break
        if state.restorer.holds_back(sequence):
            continue
        if not state.is_ready(sequence):
            if sequence.root is None or sequence.root.has_started:
                return  # it gave way, and is back as soon as its last step has retired
            continue
        num_tried += 1
        outcome = state.memory.start(sequence, state.num_scored(sequence))
        if outcome == "started":
            if first is not None:
                first.overtaken += 1
            state.admit(sequence)
            _tell_table(state, sequence)
        elif outcome == "coming":
            return
        elif first is None:
            first = sequence
    if first is not None:
        state.note_blocked()


def next_decodes(state: EngineState, most: int) -> list[RequestState]:
    """Up to `most` running sequences that may draw another token and have the page for it, longest waiting first.

    Takes the pages that they have reached; where there are none, younger sequences give way.
    """
    ready = [sequence for sequence in state.running if sequence.num_drawn < sequence.limit]
    state.decode_owed = len(ready) > most
    if state.decode_owed:
        ready = ready[:most]
        state.running = [sequence for sequence in state.running if sequence not in ready] + ready
    if not grow_short(state, ready):
        return ready
    return [sequence for sequence in ready if sequence.slot >= 0 and not sequence.lacks_page]


def grow_short(state: EngineState, sequences: Iterable[RequestState]) -> bool:
    """Take the pages that some of these have reached; whether any had. The youngest, of all that hold memory, give way
    where there are none."""
    short = [sequence for sequence in sequences if sequence.lacks_page]
    for sequence in sorted(short, key=lambda each: each.order):
        if sequence.slot >= 0 and state.grow(sequence):
            _tell_table_of_pages(state, sequence, len(sequence.pages) - 1)
    return bool(short)


def take_pages(state: EngineState, sequence: RequestState, end: int) -> int:
    """Take the pages of a chunk up to position `end`, as long as that takes none from anybody; returns how far they go.

    Each that decodes is left the page that it may reach meanwhile. The page that the chunk begins in is there already.
    """
    first = len(sequence.pages)
    while len(sequence.pages) * PAGE_SIZE < end:
        if sequence.lacks_page or not state.memory.make_room(1 + len(state.running)):
            break
        sequence.pages += state.pages.take(1)
    if len(sequence.pages) > first:
        _tell_table_of_pages(state, sequence, first)
    return min(end, len(sequence.pages) * PAGE_SIZE)


def submit_move(state: EngineState, move: Callable[[], None], saving: Saving | None = None) -> int:
    """Submit a step that moves pages and computes nothing, and put it on the books; returns its number."""
    table, started_at = state.table, state.clock()
    try:
        table.begin_forward()
        move()
        number = table.end_forward()
    except DeviceFailed:
        raise
    except Exception as error:
        # Nobody's answer depends on it: what was to be kept or restored is computed again.
        raise StepFailed([], error) from error
    state.in_flight.append(InFlightStep(number, [], [], [], [], 0, started_at, saving, computes=False))
    return number


def submit_step(
    state: EngineState, run_layers: Callable[[], None], plan: StepPlan, participants: list[RequestState]
) -> None:
    """Record one step, submit it, and put it on the books. A failure is that of `participants`."""
    table = state.table
    samples = plan.samples + plan.forced if plan.forced else plan.samples
    before, started_at = table.last_submitted, state.clock()
    try:
        table.begin_forward()
        if plan.copies:
            table.copy_pages(plan.copies)
        table.embed(plan.rows)
        run_layers()
        if samples:
            table.logits([sample.row for sample in samples])
            table.sample(samples)
        number = table.end_forward()
        num_decode = len(plan.rows) - plan.num_prompt_rows
        state.metrics.step_submitted(number, plan.num_prompt_rows, num_decode, started_at)
    except DeviceFailed:
        raise
    except Exception as error:
        # Whoever only rode along goes on, unless the step is on its way all the same.
        blamed = participants if table.last_submitted == before else [*participants, *plan.drawing]
        if isinstance(error, OutOfMemory):
            blamed = _who_asks_for_more(plan) or blamed
        raise StepFailed(blamed, error) from error
    drawing = plan.drawing
    everybody = drawing
    if plan.chunks:
        finishing = set(map(id, drawing))
        everybody = drawing + [sequence for sequence, _ in plan.chunks if id(sequence) not in finishing]
    state.in_flight.append(
        InFlightStep(number, everybody, drawing, plan.chunks, plan.scored, plan.num_prompt_rows, started_at)
    )
    for sequence in drawing:
        sequence.num_drawn += 1
    for sequence in everybody:
        sequence.last_step = number


def _who_asks_for_more(plan: StepPlan) -> list[RequestState]:
    """Those for whom a step needs buffers that others do without. Who has had them before is not to blame."""
    pairs = zip(plan.samples, plan.drawing, strict=True)
    asking = [sequence for sample, sequence in pairs if not sample.is_plain]
    asking += [sequence for sequence, _ in plan.chunks if sequence in plan.scored or sequence.copy is not None]
    return [sequence for sequence in asking if not sequence.num_drawn] or asking


def _tell_table(state: EngineState, sequence: RequestState) -> None:
    pages = sequence.pages
    dropped = [index for index, page in enumerate(pages) if page == NO_PAGE]
    _call(sequence, lambda: state.table.set_pages(sequence.slot, 0, pages[: dropped[0]] if dropped else pages))
    if dropped:
        _tell_table_of_pages(state, sequence, dropped[-1] + 1)
    if sequence.sampling.counts_tokens:
        prompt_ids, committed = sequence.request.prompt_ids, sequence.committed
        _call(sequence, lambda: state.table.set_counts(sequence.slot, prompt_ids, committed))


def _tell_table_of_pages(state: EngineState, sequence: RequestState, first: int) -> None:
    _call(sequence, lambda: state.table.set_pages(sequence.slot, first, sequence.pages[first:]))


def _call(sequence: RequestState, call: Callable[[], None]) -> None:
    try:
        call()
    except DeviceFailed:
        raise
    except Exception as error:
        # Whatever a table raises here is about this sequence alone.
        raise StepFailed([sequence], error) from error

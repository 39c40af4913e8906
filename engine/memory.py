"""Memory: pages, slots and the prefix cache, and who of the sequences gets them.

Owns both pools and the tree. Decides neither who is asked first nor who has to give way (engine/state.py does). What it
frees carries the number of the last submitted step. Only the engine's background thread touches it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from engine.function_table import PAGE_SIZE, FunctionTable
from engine.page_pool import Pool
from engine.prefix_cache import NO_MATCH, Match, PrefixCache
from engine.request_state import RequestState
from engine.window import NO_PAGE, Window, held

Outcome = Literal["started", "coming", "short"]


class Memory:
    """See the module's docstring."""

    def __init__(self, table: FunctionTable) -> None:
        self._table = table
        self.window = Window(table.limits)
        self.pages = Pool(table.limits.num_pages)
        self.slots = Pool(table.limits.max_slots)
        self.cache = PrefixCache(self.pages)
        self.release_held: Callable[[], bool] = lambda: False
        self.hurry_held: Callable[[], bool] = lambda: False
        """Ask those who hold pages that they can do without to give them up, or to be quick; False if no page came."""

    def start(self, sequence: RequestState, num_scored: int | None) -> Outcome:
        """Give a sequence a slot and the pages of its known tokens, as many as possible from the cache or its root.

        With a window: only those that the first row to be computed reaches, and as many behind it as it ever needs at
        once; the others are taken chunk by chunk. One page more has to be free if it will need one, so that it can go
        on for a while. "coming": what it needs is leaving, and free when the steps in flight have retired; "short":
        somebody holds it. `num_scored`: logprobs of its prompt tokens that there are already, where they are wanted:
        what follows has to be computed.
        """
        tokens = sequence.known_tokens
        match, retired = self._find(sequence, tokens, num_scored)
        outcome = self._start_with(sequence, len(tokens), match, retired)
        if outcome == "short" and match.partial >= 0:
            # The page to be copied is one more than it will ever need again.
            whole = len(match.pages)
            outcome = self._start_with(sequence, len(tokens), Match(match.pages, -1, whole * PAGE_SIZE), retired)
        return outcome

    def make_room(self, count: int, *, at_once: bool = False) -> bool:
        """Whether `count` pages are free now; evicts what is missing if that can help.

        Pages that wait to be saved are given up only where they are needed `at_once`: reading them takes milliseconds,
        and who is to be admitted can wait for that.
        """
        self._evict_for(count)
        if not self.is_coming(count) and (self.release_held() if at_once else self.hurry_held()):
            self._evict_for(count)
        return self.pages.num_free >= count

    def could_hold(self, num_tokens: int, match: Match) -> bool:
        """Whether so many tokens would find room now beside who is admitted, some of them as matched."""
        missing = -(-num_tokens // PAGE_SIZE) - len(match.pages) + 1 - self.pages.num_free - self.pages.num_leaving
        if missing > 0:
            for page in self.cache.pages_held():
                missing -= self.pages.references(page) == 1
                if missing <= 0:
                    break
        return missing <= 0

    def is_coming(self, count: int) -> bool:
        """Whether `count` pages are free or leaving."""
        return self.pages.num_free + self.pages.num_leaving >= count

    def num_pages_needed(self, sequence: RequestState) -> int:
        """Pages that the sequence needs at most at once."""
        return self.window.most_pages(sequence.num_pages_needed)

    def drop(self, sequence: RequestState) -> None:
        """Release what left the window of the sequence's next row."""
        leaving = self.window.leaving(sequence.pages, sequence.next_row)
        if leaving:
            pages = sequence.pages
            self.pages.release([pages[index] for index in leaving], self._table.last_submitted)
            pages[leaving.start : leaving.stop] = [NO_PAGE] * len(leaving)

    def let_go(self, sequence: RequestState, *, keep: bool) -> None:
        """Take slot and pages back; with `keep`, what retired steps computed goes into the cache."""
        last_submitted = self._table.last_submitted
        if keep and sequence.num_retired:
            self.remember(sequence)
        self.release_copy(sequence)
        self.pages.release(held(sequence.pages), last_submitted)
        self.slots.release([sequence.slot], last_submitted)
        sequence.pages, sequence.slot = [], -1
        sequence.num_target = sequence.num_prefilled = sequence.num_retired = 0

    def remember(self, sequence: RequestState) -> None:
        """Put what retired steps computed into the cache, unless the request wants no trace."""
        if sequence.request.use_cache:
            tokens = sequence.known_tokens[: sequence.num_retired]
            self.cache.insert(tokens, sequence.pages, self._table.last_submitted)

    def release_copy(self, sequence: RequestState) -> None:
        """The page to be copied is copied, or no longer wanted."""
        if sequence.copy is not None:
            self.pages.release([sequence.copy[0]], self._table.last_submitted)
            sequence.copy = None

    def _evict_for(self, count: int) -> None:
        short = count - self.pages.num_free - self.pages.num_leaving
        if 0 < short <= self.cache.num_pages:
            self.cache.evict(short, self._table.last_submitted)

    def _find(self, sequence: RequestState, tokens: list[int], num_scored: int | None) -> tuple[Match, bool]:
        """What need not be computed, and whether retired steps did it; the last token always is, to draw from it."""
        limit = len(tokens) - 1 if num_scored is None else min(len(tokens) - 1, num_scored)
        root = sequence.root
        if root is not None and not sequence.committed and self._holds(root, len(tokens), limit):
            whole, rest = divmod(limit, PAGE_SIZE)
            return Match(root.pages[:whole], root.pages[whole] if rest else -1, limit), False
        if sequence.request.use_cache:
            return self.cache.match(tokens, limit), True
        return NO_MATCH, True

    def _start_with(self, sequence: RequestState, num_tokens: int, match: Match, retired: bool) -> Outcome:
        matched, partial, num_matched = match
        needs, total = self.window.needs, -(-num_tokens // PAGE_SIZE)
        shared = [page if needs(index, num_matched) else NO_PAGE for index, page in enumerate(matched)]
        fresh = self.window.end_page(num_matched, total) - len(shared)
        whole = held(shared)
        spare = 1 if len(whole) + fresh < self.num_pages_needed(sequence) else 0
        borrowed = [*whole, partial] if partial >= 0 else whole
        self.pages.share(borrowed)
        if not self.make_room(fresh + spare):
            self.pages.release(borrowed, self._table.last_submitted)
            return "coming" if self.is_coming(fresh + spare) else "short"
        [sequence.slot] = self.slots.take(1)
        sequence.pages = [*shared, *self.pages.take(fresh)]
        if partial >= 0:
            sequence.copy = partial, sequence.pages[len(shared)]
        sequence.num_target = num_tokens
        sequence.num_prefilled = num_matched
        sequence.num_retired = len(shared) * PAGE_SIZE if retired else 0
        return "started"

    def _holds(self, root: RequestState, num_tokens: int, first_row: int) -> bool:
        """Whether its own pages have of the prompt what `first_row` reaches, by steps that were submitted."""
        if root.slot < 0 or root.copy is not None or root.num_prefilled < num_tokens:
            return False
        needs, last = self.window.needs, first_row // PAGE_SIZE
        start = last * PAGE_SIZE  # from where the fork computes if it has no room to copy the last page
        return all(page != NO_PAGE or not needs(index, start) for index, page in enumerate(root.pages[: last + 1]))

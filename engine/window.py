"""Which pages a sequence needs while a model attends to a window: plain arithmetic over positions.

Knows neither pools nor sequences. Any thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.function_table import PAGE_SIZE, TableLimits

NO_PAGE = -1
"""In a sequence's list of pages: one that left the window, and is not held any more."""


class Window:
    """The row at position p reaches tokens t <= p with t < sinks or t > p - window; all t <= p where window is 0."""

    __slots__ = ("_num_pages", "_num_sink_pages", "_window")

    def __init__(self, limits: TableLimits) -> None:
        self._window = limits.window
        self._num_sink_pages = pages_of(limits.sinks)
        self._num_pages = pages_of_window(limits.window)

    @property
    def is_on(self) -> bool:
        """Whether anything is ever out of reach."""
        return self._window > 0

    def needs(self, page: int, position: int) -> bool:
        """Whether the row at `position`, or a later one, reaches into a sequence's page with this index."""
        return page < self._num_sink_pages or page >= self.first_page(position)

    def first_page(self, position: int) -> int:
        """Index of the first page behind the sinks that the row at `position`, or a later one, reaches into."""
        if not self._window:
            return 0
        return max(self._num_sink_pages, (position + 1 - self._window) // PAGE_SIZE)

    def end_page(self, position: int, num_pages: int) -> int:
        """Up to where a sequence of `num_pages` may hold pages at once, from the row at `position` on."""
        return min(num_pages, self.first_page(position) + self._num_pages) if self._window else num_pages

    def most_pages(self, num_pages: int) -> int:
        """Pages that a sequence of `num_pages` needs at most at once, whichever row is next."""
        return min(num_pages, self._num_sink_pages + self._num_pages) if self._window else num_pages

    def leaving(self, pages: Sequence[int], position: int) -> range:
        """Indices of the held pages that no row from `position` on reaches. Earlier ones left in order before them."""
        end = min(self.first_page(position), len(pages)) if self._window else 0
        start = end
        while start > self._num_sink_pages and pages[start - 1] != NO_PAGE:
            start -= 1
        return range(start, end)


def held(pages: Sequence[int]) -> list[int]:
    """Those of a sequence's pages that it still holds."""
    return [page for page in pages if page != NO_PAGE]


def pages_of(tokens: int) -> int:
    """Pages that hold so many tokens from a page's beginning on."""
    return -(-tokens // PAGE_SIZE)


def pages_of_window(window: int) -> int:
    """Pages into which a window reaches at most, wherever it begins."""
    return pages_of(window - 1) + 1

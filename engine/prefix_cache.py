"""The prefix cache: a radix tree over token ids whose edges are pages of keys and values that are worth keeping.

Owns one reference in the pool for each page in the tree, and the order in which pages were last used. Knows neither
sequences nor the device; who calls it says which tokens a page holds. Only the engine's background thread touches it.

An edge is one page: 16 tokens, or fewer at a leaf, where only those positions of the page count. A page in the tree is
read and never written, except that the sequence which brought it may go on filling it behind the positions that count.
No edge begins another one of the same node, so the longest match is beside the place where an edge would be inserted.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import count
from typing import NamedTuple

from engine.function_table import PAGE_SIZE
from engine.page_pool import Pool

Edge = tuple[int, ...]


class Match(NamedTuple):
    """What the tree has of some tokens: whole pages to share, and a page of which a part fits, to copy (-1: none)."""

    pages: list[int]
    partial: int
    num_tokens: int


NO_MATCH = Match([], -1, 0)


class Place(NamedTuple):
    """How far whole pages of some tokens are in the tree: the last one's node, and the tokens up to its end."""

    node: _Node
    num_tokens: int
    generation: int


class _Node:
    __slots__ = ("children", "edge", "edges", "last_used", "page", "parent", "pinned", "queued")

    def __init__(self, parent: _Node | None, edge: Edge, page: int) -> None:
        self.parent = parent
        self.edge = edge
        self.page = page
        self.edges: list[Edge] = []  # of the children, in lexicographic order
        self.children: list[_Node] = []
        self.last_used = 0
        self.pinned = False
        self.queued = False


class PrefixCache:
    """See the module's docstring. Each operation costs as many look-ups as the tokens have pages."""

    def __init__(self, pages: Pool) -> None:
        self._pages = pages
        self._root = _Node(None, (), -1)
        self._clock = 0
        self._serial = count()
        self._generation = 0
        # Leaves by their last use, or an earlier one: corrected when it comes to the top, so that a use costs nothing.
        self._leaves: list[tuple[int, int, _Node]] = []
        self.num_pages = 0
        self.num_pinned = 0

    def match(self, tokens: Sequence[int], limit: int) -> Match:
        """The longest prefix of tokens[:limit] that is here, to the token. Takes no reference; counts as a use."""
        self._clock += 1
        node, pages, start = self._root, list[int](), 0
        while start < limit:
            edge = tuple(tokens[start : min(start + PAGE_SIZE, limit)])
            best, length = _nearest(node, edge)
            if best is None:
                break
            best.last_used = self._clock
            if length < PAGE_SIZE:
                return Match(pages, best.page, start + length)
            pages.append(best.page)
            node, start = best, start + PAGE_SIZE
        return Match(pages, -1, start)

    def insert(self, tokens: Sequence[int], pages: Sequence[int], last_submitted: int) -> None:
        """Keep the pages that hold these tokens, where the tree has none for them; the caller keeps its references.

        A page of -1 is one that the caller has not; where the tree has not either, what follows is not kept.
        """
        self._clock += 1
        node = self._root
        for index in range(-(-len(tokens) // PAGE_SIZE)):
            edge = tuple(tokens[index * PAGE_SIZE : (index + 1) * PAGE_SIZE])
            following = self._step(node, edge) if pages[index] < 0 else None
            if following is None and pages[index] < 0:
                break
            node = following or self._place(node, edge, pages[index], last_submitted)
            node.last_used = self._clock
        if node is not self._root:
            self._queue(node)

    def seek(self, tokens: Sequence[int], limit: int, near: Place | None = None) -> Place:
        """How far whole pages of tokens[:limit] are here. `near` is where they were last time, to begin there."""
        node, start = self._root, 0
        if near is not None and self._has(near) and near.num_tokens <= limit:
            node, start = near.node, near.num_tokens
        while start + PAGE_SIZE <= limit:
            following = self._step(node, tuple(tokens[start : start + PAGE_SIZE]))
            if following is None:
                break
            node, start = following, start + PAGE_SIZE
        return Place(node, start, self._generation)

    def num_beyond(self, place: Place, tokens: Sequence[int], limit: int) -> int:
        """How many tokens behind a place, less than a page of them, are here too."""
        return _nearest(place.node, tuple(tokens[place.num_tokens : min(limit, place.num_tokens + PAGE_SIZE)]))[1]

    def graft(self, place: Place, tokens: Sequence[int], pages: Sequence[int], last_submitted: int) -> Place | None:
        """As insert(), of the tokens and pages behind a place; None if that is not here any more.

        All that precedes counts as used.
        """
        if not self._has(place):
            return None
        self._clock += 1
        above: _Node | None = place.node
        while above is not None:
            above.last_used = self._clock
            above = above.parent
        node, start = place.node, place.num_tokens
        for page in pages:
            node = self._place(node, tuple(tokens[start : start + PAGE_SIZE]), page, last_submitted)
            node.last_used = self._clock
            start += PAGE_SIZE
        self._queue(node)
        whole = len(tokens) // PAGE_SIZE * PAGE_SIZE
        return self.seek(tokens, whole, place)

    def pin(self, tokens: Sequence[int], room: int) -> bool:
        """Keep what is here of these tokens until clear(); False, with nothing changed, if that takes over `room`."""
        path: list[_Node] = []
        node, start = self._root, 0
        while start < len(tokens):
            edge = tuple(tokens[start : start + PAGE_SIZE])
            best, length = _nearest(node, edge)
            if best is None or length < len(edge):
                break
            path.append(best)
            node, start = best, start + PAGE_SIZE
        fresh = [node for node in path if not node.pinned]
        if len(fresh) > room:
            return False
        for node in fresh:
            node.pinned = True
        self.num_pinned += len(fresh)
        return True

    def evict(self, count: int, last_submitted: int) -> int:
        """Let go of up to `count` pages that only the tree holds, leaves first and the longest unused first.

        A leaf that somebody uses stays, unless pages that nobody uses precede it and nothing else is left to give: it
        is forgotten then, so that they can go. So all pages can be had that are neither in use nor pinned.
        """
        num_freed = 0
        while num_freed < count:
            freed, in_use = self._evict_leaves(count - num_freed)
            num_freed += len(freed)
            self._pages.release(freed, last_submitted)
            trapping = [entry for entry in in_use if num_freed < count and self._traps(entry[2])]
            for entry in in_use:
                if trapping and entry is trapping[0]:
                    self._remove(entry[2])
                    self._pages.release([entry[2].page], last_submitted)
                else:
                    heapq.heappush(self._leaves, entry)
            if not trapping:
                break
        return num_freed

    def clear(self, last_submitted: int) -> None:
        """Forget everything, pinned or not."""
        self._pages.release(list(self.pages_held()), last_submitted)
        self._root = _Node(None, (), -1)
        self._leaves.clear()
        self._generation += 1
        self.num_pages = self.num_pinned = 0

    def pages_held(self) -> Iterator[int]:
        """Every page in the tree."""
        return (node.page for node in self._nodes())

    def check_integrity(self) -> None:
        """Raise AssertionError where the tree is not what the module's docstring says."""
        nodes = list(self._nodes())
        assert len(nodes) == self.num_pages, "pages in the tree are miscounted"
        assert sum(node.pinned for node in nodes) == self.num_pinned, "pinned pages are miscounted"
        queued = [id(node) for _, _, node in self._leaves]
        assert len(queued) == len(set(queued)), "a leaf is queued twice"
        for node in (self._root, *nodes):
            assert node.edges == [child.edge for child in node.children] == sorted(node.edges), "edges are out of order"
            for edge, after in zip(node.edges, node.edges[1:], strict=False):
                assert after[: len(edge)] != edge, "an edge begins another one"
            for child in node.children:
                assert child.parent is node and 0 < len(child.edge) <= PAGE_SIZE, "a node is misplaced"
                assert len(child.edge) == PAGE_SIZE or not child.children, "something follows an unfinished page"
                assert child.children or child.queued, "a leaf can never be evicted"
                assert child.last_used <= node.last_used or node is self._root, "a page was used without what precedes"
                assert node.pinned or not child.pinned or node is self._root, "a pinned page follows one that is not"

    def _has(self, place: Place) -> bool:
        """Whether the place is in the tree. What has something below it stays, so only the node itself counts."""
        return place.generation == self._generation and (place.node is self._root or place.node.parent is not None)

    def _nodes(self) -> Iterator[_Node]:
        stack = list(self._root.children)
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children)

    def _evict_leaves(self, count: int) -> tuple[list[int], list[tuple[int, int, _Node]]]:
        """Pages of removed leaves, and the leaves that were met and have to stay, now out of the queue."""
        freed: list[int] = []
        in_use: list[tuple[int, int, _Node]] = []
        while len(freed) < count and self._leaves:
            entry = heapq.heappop(self._leaves)
            used, _, node = entry
            if node.children:
                node.queued = False
            elif used != node.last_used:
                heapq.heappush(self._leaves, (node.last_used, next(self._serial), node))
            elif node.pinned or self._pages.references(node.page) > 1:
                in_use.append(entry)
            else:
                freed.append(node.page)
                self._remove(node)
        return freed, in_use

    def _traps(self, leaf: _Node) -> bool:
        """Whether pages that only the tree holds cannot go because of this leaf."""
        node = leaf.parent
        while not leaf.pinned and node is not None and node is not self._root and not node.pinned:
            if self._pages.references(node.page) == 1:
                return True
            node = node.parent
        return False

    def _step(self, node: _Node, edge: Edge) -> _Node | None:
        """The child at exactly this edge."""
        at = bisect_left(node.edges, edge)
        return node.children[at] if at < len(node.edges) and node.edges[at] == edge else None

    def _place(self, node: _Node, edge: Edge, page: int, last_submitted: int) -> _Node:
        """The child that holds this edge: found, lengthened, or new."""
        edges, children = node.edges, node.children
        at = bisect_left(edges, edge)
        if at < len(edges) and edges[at][: len(edge)] == edge:
            child = children[at]
            if child.edge == edge and child.page != page and self._pages.references(child.page) == 1:
                self._swap(child, page, last_submitted)  # the caller's is in use anyway: one page for both
            return child
        if at and edge[: len(edges[at - 1])] == edges[at - 1]:
            child = children[at - 1]
            if child.page != page:
                self._swap(child, page, last_submitted)
            child.edge = edges[at - 1] = edge
            return child
        self._pages.share([page])
        self.num_pages += 1
        child = _Node(node, edge, page)
        edges.insert(at, edge)
        children.insert(at, child)
        return child

    def _swap(self, node: _Node, page: int, last_submitted: int) -> None:
        self._pages.share([page])
        self._pages.release([node.page], last_submitted)
        node.page = page

    def _remove(self, node: _Node) -> None:
        self.num_pages -= 1
        parent = node.parent
        assert parent is not None, "the root holds no page"
        node.parent = None
        at = bisect_left(parent.edges, node.edge)
        del parent.edges[at], parent.children[at]
        if parent is not self._root and not parent.children:
            self._queue(parent)

    def _queue(self, node: _Node) -> None:
        if not node.children and not node.queued:
            node.queued = True
            heapq.heappush(self._leaves, (node.last_used, next(self._serial), node))


def _nearest(node: _Node, edge: Edge) -> tuple[_Node | None, int]:
    """The child that shares the most leading tokens with `edge`, and how many."""
    at = bisect_left(node.edges, edge)
    best, longest = None, 0
    for index in (at, at - 1):
        if 0 <= index < len(node.edges):
            length = _common(node.edges[index], edge)
            if length > longest:
                best, longest = node.children[index], length
    return best, longest


def _common(one: Edge, other: Edge) -> int:
    if one == other:
        return len(one)
    length = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        length += 1
    return length

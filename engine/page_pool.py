"""Interchangeable device resources (KV pages, slots) with reference counts and retirement by step number.

Owns which ids are free, held or leaving. What was released may still be read by steps in flight, so it leaves with
the number of the last submitted step and is free again when that step has retired. Knows neither sequences nor what an
id stands for. Only the engine's background thread touches it.

    free --take--> held --release(last submitted step)--> leaving --retire(that step)--> free
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable


class Pool:
    """Hands out the ids 0 .. count - 1, the most recently freed first."""

    __slots__ = ("_count", "_free", "_leaving", "_num_leaving", "_references", "_retired")

    def __init__(self, count: int) -> None:
        self._count = count
        self._free = list(range(count - 1, -1, -1))
        self._references = [0] * count
        self._leaving: deque[tuple[int, list[int]]] = deque()
        self._num_leaving = 0
        self._retired = 0

    @property
    def count(self) -> int:
        """How many ids there are in all."""
        return self._count

    @property
    def num_free(self) -> int:
        """How many ids take() can hand out now."""
        return len(self._free)

    @property
    def num_leaving(self) -> int:
        """How many ids nobody holds and steps in flight may still use."""
        return self._num_leaving

    @property
    def last_retired(self) -> int:
        """The newest step that retire() was told of."""
        return self._retired

    def references(self, resource: int) -> int:
        """How many hold this id."""
        return self._references[resource]

    def take(self, count: int) -> list[int]:
        """Hold `count` free ids, one reference each. The caller has checked num_free."""
        assert count <= len(self._free), "took more than is free"
        taken = [self._free.pop() for _ in range(count)]
        for resource in taken:
            self._references[resource] = 1
        return taken

    def share(self, ids: Iterable[int]) -> None:
        """Add a reference to held ids, for a second holder."""
        for resource in ids:
            assert self._references[resource] > 0, "shared what nobody holds"
            self._references[resource] += 1

    def release(self, ids: Iterable[int], last_submitted: int) -> None:
        """Drop a reference to each; what nobody holds any more is free once step `last_submitted` has retired."""
        leaving: list[int] = []
        for resource in ids:
            assert self._references[resource] > 0, "released twice"
            self._references[resource] -= 1
            if not self._references[resource]:
                leaving.append(resource)
        if last_submitted <= self._retired:
            self._free.extend(leaving)
        elif leaving:
            self._leaving.append((last_submitted, leaving))
            self._num_leaving += len(leaving)

    def retire(self, step: int) -> None:
        """Free what left with `step` or an earlier one. Steps retire in order."""
        self._retired = step
        while self._leaving and self._leaving[0][0] <= step:
            returned = self._leaving.popleft()[1]
            self._num_leaving -= len(returned)
            self._free.extend(returned)

    def recount(self, held: Iterable[int]) -> None:
        """Check, against every holder's ids, that each id is accounted for exactly once. Changes nothing."""
        counts = Counter(held)
        for resource, references in enumerate(self._references):
            assert counts[resource] == references, f"id {resource}: {counts[resource]} holders, {references} counted"
        leaving = [resource for step, ids in self._leaving for resource in ids]
        assert len(leaving) == self._num_leaving, "leaving ids are miscounted"
        assert all(step > self._retired for step, _ in self._leaving), "something left too late"
        everything = sorted([*self._free, *leaving, *counts])
        assert everything == list(range(self._count)), "an id is lost or in two places"

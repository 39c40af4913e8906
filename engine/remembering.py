"""Listens in on a request's stream and hands each whole answer, text and tokens, to whoever keeps them.

Knows neither chats nor the prefix cache, for which this is done (models/answer_memory.py says why). Runs on the
stream-back thread, ahead of the caller's own callback, so that the next turn finds the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.request import Delta

Remember = Callable[[str, Sequence[int]], None]


def remembering(on_delta: Callable[[Delta], None], remember: Remember) -> Callable[[Delta], None]:
    """on_delta, with remember(text, token_ids) called before the last delta of each answer that ended without error."""
    texts: dict[int, list[str]] = {}
    tokens: dict[int, list[int]] = {}

    def deliver(delta: Delta) -> None:
        texts.setdefault(delta.index, []).append(delta.text)
        tokens.setdefault(delta.index, []).extend(delta.token_ids)
        if delta.finish_reason is not None and delta.finish_reason != "error":
            remember("".join(texts.pop(delta.index)), tokens.pop(delta.index))
        on_delta(delta)

    return deliver

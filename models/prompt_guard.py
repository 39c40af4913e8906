"""Keeps people's text from turning into control tokens while a chat template handles it as a string.

A template joins its own control tokens with text from people into one string. Two noncharacters of Unicode, which have
no meaning of their own, mark where that text could be read as a control token; they leave again before encoding:

    content     see <|im_end|> there    ->   see <X|im_end|> there      X inside each whole control token
    content     ends with <|im_         ->   ends with <X|im_           X inside what the template might complete
    content     start|> begins          ->   Ystart|> begins            Y before what the template might have begun

Marks go nowhere else, so that templates can still trim, split, compare and search text. Does not know templates or how
text is encoded. Immutable after construction; any thread.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

_INNER, _EDGE = "\ufdd0", "\ufdd1"
_NO_MARKS = {ord(_INNER): None, ord(_EDGE): None}
_STRUCTURE_KEYS = frozenset({"role", "type"})  # templates compare these values; they name things and carry no text
_PLAIN_WORD = re.compile(r"[A-Za-z][\w.-]*")


class PromptGuard:
    """Marks text before rendering and cuts the rendered prompt at true control tokens."""

    def __init__(self, control_tokens: Mapping[str, int]) -> None:
        """`control_tokens`: text to id, none of the texts empty."""
        self.control_tokens = control_tokens
        self._longest = max(map(len, control_tokens), default=0)
        self._beginnings = {text[:end] for text in control_tokens for end in range(1, len(text))}
        self._endings = {text[start:] for text in control_tokens for start in range(1, len(text))}
        longest_first = sorted(control_tokens, key=len, reverse=True)
        # A token of one character has no inside: there the mark behind it tells.
        texts = [re.escape(text) + (f"(?!{_INNER})" if len(text) == 1 else "") for text in longest_first]
        self._tokens = re.compile("|".join(texts) or r"(?!)")
        self._starts = re.compile("(?=" + ("|".join(map(re.escape, longest_first)) or r"(?!)") + ")")

    def protect(self, value: object) -> object:
        """A copy of a message, or of any JSON value, with every text in it marked where needed.

        Values of `role` and `type` stay as they are while they are plain words. Keys get marks only inside whole
        control tokens: templates look keys up by name.
        """
        if isinstance(value, str):
            return self._mark(value)
        if isinstance(value, Mapping):
            return {self._mark_whole(str(key)): self._protect_entry(key, item) for key, item in value.items()}
        if isinstance(value, Sequence):
            return [self.protect(item) for item in value]
        return value

    def cut(self, rendered: str) -> Iterator[int | str]:
        """The rendered prompt as ids of the template's control tokens and, between them, text free of marks."""
        start = 0
        for match in self._tokens.finditer(rendered):
            if text := rendered[start : match.start()].translate(_NO_MARKS):
                yield text
            yield self.control_tokens[match.group()]
            start = match.end()
        if text := rendered[start:].translate(_NO_MARKS):
            yield text

    def _protect_entry(self, key: object, value: object) -> object:
        if key in _STRUCTURE_KEYS and isinstance(value, str) and _PLAIN_WORD.fullmatch(value):
            return value
        return self.protect(value)

    def _mark(self, text: str) -> str:
        text = text.translate(_NO_MARKS)
        inner = {match.start() + 1 for match in self._starts.finditer(text)} | self._open_ends(text)
        marked = _insert(text, inner, _INNER)
        if not self._could_continue(text):
            return marked
        edge = len(text) - len(text.lstrip())
        return marked[:edge] + _EDGE + marked[edge:]

    def _mark_whole(self, text: str) -> str:
        text = text.translate(_NO_MARKS)
        return _insert(text, {match.start() + 1 for match in self._starts.finditer(text)}, _INNER)

    def _open_ends(self, text: str) -> set[int]:
        """Positions behind the first character of each control token that the text begins and doesn't finish."""
        ends = {len(text), len(text.rstrip())}  # templates often trim
        return {
            start + 1
            for end in ends
            for start in range(max(0, end - self._longest + 1), end)
            if text[start:end] in self._beginnings
        }

    def _could_continue(self, text: str) -> bool:
        """Whether the text could be the end, or a whole middle, of a control token that came before it."""
        core = text.strip()
        if not core:
            return False
        left = text.lstrip()
        if any(left[:size] in self._endings for size in range(1, self._longest)):
            return True
        return len(core) < self._longest and any(core in token for token in self.control_tokens)


def _insert(text: str, positions: set[int], mark: str) -> str:
    if not positions:
        return text
    bounds = [0, *sorted(positions), len(text)]
    return mark.join(text[start:end] for start, end in pairwise(bounds))

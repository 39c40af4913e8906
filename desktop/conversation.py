"""One chat: its questions and answers, and what of them is sent with the next request.

Knows no Qt, no engine and no template. Owned by the session; GUI thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Exchange:
    """A question and its answer so far."""

    question: str
    answer: str = ""


@dataclass(slots=True)
class Conversation:
    """Exchanges, oldest first; the last one may still be open."""

    exchanges: list[Exchange] = field(default_factory=list)

    def ask(self, question: str) -> None:
        """Open a new exchange."""
        self.exchanges.append(Exchange(question))

    def extend_answer(self, text: str) -> None:
        """Add text to the open answer."""
        self.exchanges[-1].answer += text

    def forget_answer(self) -> None:
        """Empty the last answer, so that its question can be asked again."""
        self.exchanges[-1].answer = ""

    def turns(self) -> list[tuple[str, str]]:
        """(role, content) of every turn up to the last question.

        An earlier question that never got an answer is left out: templates want the roles to alternate, and a
        message that was refused for its length must not stand in the way of the next one.
        """
        result: list[tuple[str, str]] = []
        for exchange in self.exchanges[:-1]:
            if exchange.answer:
                result += [("user", exchange.question), ("assistant", exchange.answer)]
        if self.exchanges:
            result.append(("user", self.exchanges[-1].question))
        return result

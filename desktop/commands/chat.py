"""`inglenook chat`: a conversation in the terminal, a line of input to each answer; with -p one answer only.

Keeps the conversation's messages, nothing else, and writes none of them down. Runs on the main thread.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from desktop.commands import cache_options, common, options, terminal
from desktop.commands.generate import message
from engine.errors import EngineError
from engine.request import Request
from models.errors import ModelError

if TYPE_CHECKING:
    from models.chat_template import Message

# Used because GGUF files of today's models seldom carry sampling defaults of their own.
_TEMPERATURE = 0.7
_TOP_P = 0.9
_START_OVER = "/new"
_PROMPT = "> "


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    add_arguments(options.add_command(commands, "chat", "a conversation in the terminal", run))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments on any parser."""
    options.add_model(parser)
    options.add_serving(parser)
    parser.add_argument("-p", "--prompt", metavar="TEXT", help="answer this, then exit")
    options.add_sampling(parser, temperature=_TEMPERATURE, top_p=_TOP_P)
    cache_options.add_cache(parser)


def run(args: argparse.Namespace) -> int:
    """Converse until the input ends. Raises EngineError or ModelError where there is nobody to go on with."""
    with common.session(args) as session:
        conversation = Conversation(session=session, args=args, stop=common.template_stops(session.model))
        if args.prompt is not None:
            conversation.answer(args.prompt)
        else:
            _converse(conversation)
    return 0


@dataclass(slots=True)
class Conversation:
    """The messages so far and the engine that answers them."""

    session: common.Session
    args: argparse.Namespace
    stop: tuple[str, ...]
    messages: list[Message] = field(default_factory=list)

    def answer(self, text: str) -> None:
        """Print the answer to `text` as it comes and keep both. After an error the conversation is as before.

        KeyboardInterrupt passes through, with what was printed until then kept as the answer.
        """
        asked = [*self.messages, message("user", text)]
        pieces: list[str] = []
        try:
            self._stream(asked, pieces)
        except KeyboardInterrupt:
            self._keep(asked, pieces)
            raise
        self._keep(asked, pieces)

    def _stream(self, asked: list[Message], pieces: list[str]) -> None:
        model = self.session.model
        request = Request(
            request_id=common.new_request_id(),
            prompt_ids=tuple(model.chat_template.prompt_ids(asked, model.tokenizer, answers=model.answers)),
            sampling=options.sampling(self.args),
            max_tokens=self.args.max_tokens,
            stop=self.stop,
            use_cache=not self.args.no_prefix_cache,
        )
        last = None
        try:
            with common.answer(self.session, request) as deltas:
                for delta in deltas:
                    last = delta
                    if delta.text:
                        pieces.append(delta.text)
                        terminal.write(delta.text)
        finally:
            if pieces:
                terminal.write("\n")
        if last is None or last.finish_reason == "error":
            raise EngineError(last.error if last and last.error else "The answer failed. Ask again.")
        if last.finish_reason == "length" and self.args.max_tokens is None:
            terminal.notice("The answer ends here because the context is full.")

    def _keep(self, asked: list[Message], pieces: list[str]) -> None:
        if pieces:
            self.messages = [*asked, message("assistant", "".join(pieces))]


def _converse(conversation: Conversation) -> None:
    person = terminal.is_terminal(sys.stdin)
    if person:
        model = conversation.session.model
        ending = "Ctrl+Z and Enter" if sys.platform == "win32" else "Ctrl+D"
        terminal.notice(f"{model.name} on {model.adapter}. {_START_OVER} starts over, {ending} ends.")
    for line in _lines(person):
        if person and line == _START_OVER:
            conversation.messages = []
            continue
        try:
            conversation.answer(line)
        except KeyboardInterrupt:
            terminal.notice("Stopped. Press Ctrl+C again to leave.")
        except (EngineError, ModelError) as error:
            terminal.notice(str(error))


def _lines(person: bool) -> Iterator[str]:
    """Lines of input that say something, until there are no more."""
    while line := _next_line(person):
        if text := line.strip():
            yield text


def _next_line(person: bool) -> str:
    """A line with its end, or "" at the end of the input."""
    if sys.stdin is None:
        return ""
    if person and terminal.is_terminal(sys.stdout):
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  gives input() its line editing, where there is one
        try:
            return input(_PROMPT) + "\n"
        except EOFError:
            terminal.write("\n")
            return ""
    if person:
        print(_PROMPT, end="", file=sys.stderr, flush=True)
    return sys.stdin.readline()

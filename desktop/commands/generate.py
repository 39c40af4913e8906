"""`inglenook generate`: continue one prompt. Text as it comes, or one JSON object at the end.

Knows nothing of how tokens are made. Runs on the main thread; the engine has its own.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from desktop.commands import cache_options, common, options, terminal
from engine.errors import EngineError
from engine.request import Delta, Request

if TYPE_CHECKING:
    from engine.loading import LoadedModel
    from models.chat_template import Message


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command's arguments."""
    parser = options.add_command(commands, "generate", "continue one prompt, greedily unless told otherwise", run)
    options.add_model(parser)
    options.add_serving(parser)
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument("--prompt", metavar="TEXT", help="plain text, continued as it stands, without a chat template")
    prompt.add_argument(
        "--messages", type=Path, metavar="FILE.json", help='a conversation: [{"role": …, "content": …}, …]'
    )
    prompt.add_argument("--token-ids", type=options.token_ids, metavar="1,2,3", help="the prompt's tokens themselves")
    options.add_sampling(parser, temperature=0.0, top_p=1.0)
    parser.add_argument(
        "--stop", action="append", default=[], metavar="S", help="end before this text; may be given several times"
    )
    parser.add_argument("--ignore-eos", action="store_true", help="go on past end tokens and stop texts")
    cache_options.add_cache(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the text")


def run(args: argparse.Namespace) -> int:
    """Generate and print. Raises EngineError or ModelError."""
    messages = None if args.messages is None else read_messages(args.messages)
    with common.session(args) as session:
        stop = [common.plain_text(text) for text in args.stop]
        if messages is not None:
            stop += common.template_stops(session.model)
        request = Request(
            request_id=common.new_request_id(),
            prompt_ids=tuple(_prompt_ids(args, messages, session.model)),
            sampling=options.sampling(args),
            max_tokens=args.max_tokens,
            stop=tuple(stop),
            ignore_eos=args.ignore_eos,
            use_cache=not args.no_prefix_cache,
        )
        answer = _answer(session, request, echo=not args.json)
        if args.json:
            terminal.write_json(answer.as_json(request, session.model.load_s))
    if answer.error is not None:
        raise EngineError(answer.error)
    return 0


@dataclass(slots=True)
class Answer:
    """What has come back of one request so far."""

    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    last: Delta | None = None

    @property
    def error(self) -> str | None:
        """The sentence of a request that failed."""
        if self.last is None:
            return "The engine ended the answer without a word. Run the command again."
        return (self.last.error or "The answer failed.") if self.last.finish_reason == "error" else None

    def as_json(self, request: Request, load_s: float) -> dict[str, object]:
        """The object that `--json` prints; its keys are a promise to other programs."""
        usage = self.last.usage if self.last else None
        timings = self.last.timings if self.last else None
        return {
            "prompt_token_ids": list(request.prompt_ids),
            "token_ids": self.token_ids,
            "text": "".join(self.text),
            "finish_reason": self.last.finish_reason if self.last else "error",
            "usage": {
                "prompt_tokens": usage.prompt_tokens if usage else len(request.prompt_ids),
                "completion_tokens": usage.completion_tokens if usage else len(self.token_ids),
                "prompt_tokens_details": {"cached_tokens": usage.cached_tokens if usage else 0},
            },
            "timings": {
                "load_s": load_s,
                "ttft_s": timings.ttft_s if timings else 0.0,
                "prefill_tokens_per_s": timings.prefill_tokens_per_s if timings else 0.0,
                "decode_tokens_per_s": timings.decode_tokens_per_s if timings else 0.0,
            },
        }


def read_messages(path: Path) -> list[Message]:
    """A conversation from a JSON file. Raises CommandError where the file holds something else."""
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise options.CommandError(f"{path} is not JSON: {error}. Give a list of messages.") from error
    if not isinstance(value, list) or not value or not all(map(_is_message, value)):
        raise options.CommandError(f'{path} must hold a list of messages, each {{"role": "…", "content": "…"}}.')
    return [message(entry["role"], entry["content"]) for entry in value]


def message(role: str, content: str) -> Message:
    """One turn of a conversation."""
    return {"role": role, "content": common.plain_text(content)}


def _is_message(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str) and isinstance(value.get("content"), str)


def _prompt_ids(args: argparse.Namespace, messages: list[Message] | None, model: LoadedModel) -> list[int]:
    if args.token_ids is not None:
        common.check_token_ids(args.token_ids, model.tokenizer.vocab_size)
        return list(args.token_ids)
    if messages is not None:
        return model.chat_template.prompt_ids(messages, model.tokenizer, answers=model.answers)
    return model.tokenizer.encode(common.plain_text(args.prompt))


def _answer(session: common.Session, request: Request, *, echo: bool) -> Answer:
    answer = Answer()
    with common.answer(session, request) as deltas:
        for delta in deltas:
            answer.text.append(delta.text)
            answer.token_ids.extend(delta.token_ids)
            answer.last = delta
            if echo and delta.text:
                terminal.write(delta.text)
    if echo and any(answer.text):
        terminal.write("\n")
    return answer

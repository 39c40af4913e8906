"""Arguments that several commands share, and the checks that make a wrong one a usage error (exit status 2).

Knows argparse and the ranges of the values, nothing of what is done with them. Runs on the main thread.
"""

from __future__ import annotations

import argparse
import re
import secrets
from collections.abc import Callable

from engine.request import SamplingParams

_MAX_SEED = 2**64 - 1
_MAX_TEMPERATURE = 100.0
_MAX_INT = 2**31 - 1
_MAX_BYTES = 2**63 - 1
_UNITS = {"": 1, "K": 1000, "M": 1000**2, "G": 1000**3, "T": 1000**4}
_BINARY_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
MODES = ("local", "interactive", "server")
"""As engine/config.py has them; spelled out here because --help must not wait for that import."""


class CommandError(Exception):
    """What a person can put right about a command's files or surroundings; str() is the line they see."""


def add_command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    summary: str,
    run: Callable[[argparse.Namespace], int],
) -> argparse.ArgumentParser:
    """A subcommand's parser. Abbreviated options are refused: they would break when an option is added."""
    parser = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
    parser.set_defaults(run=run)
    return parser


def add_model(parser: argparse.ArgumentParser, *, context_option: bool = True) -> None:
    """MODEL and the options of every command that loads one. `bench` has another meaning for --context."""
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="a .gguf file, a folder with a model, or the name of an installed one (default: the last one used)",
    )
    parser.add_argument(
        "--trace", metavar="FILE", help="write what threads and device did, for chrome://tracing or Perfetto"
    )
    add_device(parser, context_option=context_option)


def add_device(parser: argparse.ArgumentParser, *, context_option: bool = True, prefix: str = "") -> None:
    """Where and how a model is loaded. `prefix` goes before the names under which the values are stored."""
    parser.add_argument(
        "--adapter", dest=f"{prefix}adapter", metavar="NAME", help="the GPU to use, by part of its name"
    )
    if context_option:
        parser.add_argument(
            "--context",
            dest=f"{prefix}context",
            type=positive_int,
            metavar="N",
            help="tokens that prompt and answer may have together (default: what the model and the memory allow)",
        )
    parser.add_argument(
        "--kv-type",
        dest=f"{prefix}kv_type",
        choices=("f16", "f32"),
        default=None if prefix else "f16",
        help="precision of the kept keys and values (default: f16)",
    )
    parser.add_argument(
        "--kernels", dest=f"{prefix}kernels", choices=("fused", "plain"), default=None, help=argparse.SUPPRESS
    )


def add_serving(parser: argparse.ArgumentParser) -> None:
    """For how many a model is loaded, and with how much memory; what is not said is decided at the load."""
    parser.add_argument(
        "--mode",
        choices=MODES,
        help="for whom memory is set aside: a few chats and programs, one chat alone, or many (default: local)",
    )
    parser.add_argument(
        "--max-sequences", type=positive_int, metavar="N", help="answers that are written at once (default: by mode)"
    )
    parser.add_argument(
        "--total-tokens",
        type=positive_int,
        metavar="N",
        help="tokens kept on the device over all chats (default: by mode and memory)",
    )
    parser.add_argument(
        "--memory",
        type=byte_size,
        metavar="BYTES",
        help="device memory that may be used, such as 8GB or 1.5GiB (default: what is free)",
    )
    parser.add_argument(
        "--window",
        type=_not_negative,
        metavar="N",
        help="attend to the last N tokens only, which bounds memory; 0: to all (default: the model's)",
    )
    parser.add_argument(
        "--sinks", type=_not_negative, metavar="N", help="first tokens that stay in reach beside a window (default: 4)"
    )


def add_sampling(parser: argparse.ArgumentParser, *, temperature: float, top_p: float) -> None:
    """How tokens are drawn, with the command's own defaults."""
    parser.add_argument(
        "--temperature",
        type=_float_between(0.0, _MAX_TEMPERATURE),
        default=temperature,
        metavar="T",
        help=f"0 always takes the likeliest token (default: {temperature:g})",
    )
    parser.add_argument(
        "--top-p",
        type=_share,
        default=top_p,
        metavar="P",
        help=f"draw from the likeliest tokens that sum to P; no effect at temperature 0 (default: {top_p:g})",
    )
    parser.add_argument(
        "--seed", type=_seed, metavar="S", help="makes the draws repeatable (default: a new one each time)"
    )
    parser.add_argument(
        "--max-tokens", type=positive_int, metavar="N", help="longest answer (default: up to the context)"
    )


def sampling(args: argparse.Namespace) -> SamplingParams:
    """The sampling that add_sampling()'s options ask for; without --seed a random one."""
    seed = secrets.randbits(64) if args.seed is None else args.seed
    return SamplingParams(temperature=args.temperature, top_p=args.top_p, seed=seed)


def positive_int(text: str) -> int:
    """An integer from 1 to 2^31 - 1."""
    return _int_between(text, 1, _MAX_INT)


def positive_ints(text: str) -> tuple[int, ...]:
    """`128,512`: at least one positive integer."""
    return tuple(positive_int(part) for part in text.split(","))


def byte_size(text: str) -> int:
    """`8GB`, `800MB`, `1.5GiB` or plain bytes: at least one. MB counts by thousands, MiB by 1,024."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:([KMGT])(i?)B?|B?)\s*", text, re.ASCII | re.IGNORECASE)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; sizes are written like 8GB, 800MB or 1.5GiB")
    number, unit, binary = found[1], (found[2] or "").upper(), found[3]
    size = int(float(number) * (_BINARY_UNITS if binary else _UNITS)[unit]) if unit or "." in number else int(number)
    if not 1 <= size <= _MAX_BYTES:
        raise argparse.ArgumentTypeError(f"{text} is not from 1 byte to {_MAX_BYTES}")
    return size


def token_ids(text: str) -> tuple[int, ...]:
    """`1,2,3`: at least one token id. Whether the model has them is checked when it is loaded."""
    return tuple(_int_between(part, 0, _MAX_INT) for part in text.split(","))


def _not_negative(text: str) -> int:
    return _int_between(text, 0, _MAX_INT)


def _seed(text: str) -> int:
    return _int_between(text, 0, _MAX_SEED)


def _int_between(text: str, low: int, high: int) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text.strip()!r} is not a whole number") from None
    if not low <= value <= high:
        raise argparse.ArgumentTypeError(f"{value} is not from {low} to {high}")
    return value


def _float_between(low: float, high: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
        if not low <= value <= high:  # also refuses NaN
            raise argparse.ArgumentTypeError(f"{text} is not from {low:g} to {high:g}")
        return value

    return parse


def _share(text: str) -> float:
    value = _float_between(0.0, 1.0)(text)
    if value == 0.0:
        raise argparse.ArgumentTypeError("0 leaves nothing to draw from; it must be above 0 and at most 1")
    return value

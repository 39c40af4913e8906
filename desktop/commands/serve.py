"""`inglenook serve`: a model behind an address that OpenAI's clients can use, until Ctrl+C.

Knows when the endpoint starts and ends, not what it says. Runs on the main thread, which only waits.
"""

from __future__ import annotations

import argparse
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from time import sleep as _wait  # under a name of its own, for tests to put something else here
from types import FrameType

from desktop import words
from desktop.commands import cache_options, common, options, terminal
from engine.errors import EngineError
from engine.server.settings import DEFAULT_HOST, DEFAULT_PORT, EndpointSettings

_PORTS_TRIED = 20
_LOOK_EVERY_S = 0.2


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command's arguments."""
    parser = options.add_command(commands, "serve", "answer other programs, as OpenAI's API does", run)
    options.add_model(parser)
    options.add_serving(parser)
    parser.add_argument(
        "--host",
        default=DEFAULT_HOST,
        metavar="H",
        help=f"the address to listen on (default: {DEFAULT_HOST}, this computer only)",
    )
    parser.add_argument(
        "--port", type=_port, metavar="P", help=f"the port; 0 takes any (default: {DEFAULT_PORT}, or the next)"
    )
    parser.add_argument("--api-key", type=_key, metavar="K", help="let in only programs that send this key")
    cache_options.add_cache(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until told to stop. Raises CommandError where the address cannot be had, else EngineError or ModelError."""
    settings = EndpointSettings(host=args.host, api_key=args.api_key, use_cache=not args.no_prefix_cache)
    try:
        with _terminable(), closing(listening_socket(args.host, args.port)) as sock, common.session(args) as session:
            common.template_stops(session.model)  # for what it says on stderr
            _serve(session, settings, sock)
    except _Terminated:
        return 0
    return 0


def listening_socket(host: str, port: int | None) -> socket.socket:
    """The socket to serve on; without a port the first free one from the default on, with a notice if it is another."""
    from engine.server.endpoint import listen

    ports = range(DEFAULT_PORT, DEFAULT_PORT + _PORTS_TRIED) if port is None else (port,)
    try:
        sock = listen(host, ports)
    except OSError as error:
        where = f"port {port}" if port is not None else f"the ports {ports[0]} to {ports[-1]}"
        reason = error.strerror or str(error)
        raise options.CommandError(f"{where} of {host} cannot be used: {reason}. Give another --port.") from error
    taken = sock.getsockname()[1]
    if port is None and taken != DEFAULT_PORT:
        terminal.notice(f"Port {DEFAULT_PORT} is used by another program. Inglenook took {taken}.")
    return sock


def _serve(session: common.Session, settings: EndpointSettings, sock: socket.socket) -> None:
    from engine.server.endpoint import Endpoint
    from engine.server.guard import is_loopback

    endpoint = Endpoint(session.engine, settings, sock)
    try:
        endpoint.start()
        terminal.notice(_capacity(session))
        terminal.notice(f"{session.model.name} answers at {endpoint.url}. Ctrl+C ends it.")
        if settings.api_key is None and not is_loopback(settings.host):
            terminal.notice("Everyone on your network can use it. Give --api-key to change that.")
        while endpoint.running:
            _wait(_LOOK_EVERY_S)
        raise EngineError("The endpoint ended by itself. Start it again.")
    finally:
        endpoint.stop()


def _capacity(session: common.Session) -> str:
    limits = session.model.table.limits
    answers = f"up to {limits.max_slots} answers together" if limits.max_slots > 1 else "one answer after the other"
    takes = f" It takes {words.memory(session.estimate)}." if session.estimate else ""
    return f"It writes {answers}, with {limits.context_length:,} tokens for each and its prompt.{takes}"


class _Terminated(BaseException):
    """Another program asked this one to end; like KeyboardInterrupt, no `except Exception` should stop it."""


@contextmanager
def _terminable() -> Iterator[None]:
    """Raise _Terminated, once, on the signals by which a supervisor ends a program."""
    signals = [signal.SIGTERM, *([signal.SIGBREAK] if sys.platform == "win32" else [])]

    def terminate(number: int, frame: FrameType | None) -> None:
        for each in signals:
            signal.signal(each, signal.SIG_IGN)
        raise _Terminated

    before = {each: signal.signal(each, terminate) for each in signals}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) < 2**16):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; ports go from 0 to {2**16 - 1}")
    return int(text)


def _key(text: str) -> str:
    if not (text.isascii() and text.isprintable() and text.strip() == text != ""):
        raise argparse.ArgumentTypeError("a key is ASCII text, not empty, without spaces around it")
    return text

"""Endpoint: the HTTP server around a ThreadedEngine, on one thread with one asyncio loop, and the socket it listens on.

Knows the server's library, not what is served. start() and stop() are called on the owner's thread.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import uvicorn

from engine.errors import EngineError
from engine.server.app import build_app
from engine.server.chat import ChatCompletions
from engine.server.settings import EndpointSettings
from engine.threaded import ThreadedEngine

logger = logging.getLogger(__name__)

_NUM_WORKERS = 2
_BACKLOG = 512
_GRACE_S = 1  # for a client that is still sending its request when the endpoint stops
_KEEP_ALIVE_S = 60  # longer than clients keep theirs, so that they never send into a connection that is closing


def listen(host: str, ports: Iterable[int]) -> socket.socket:
    """A listening socket on the first port that is free; 0 takes any. Raises OSError if none is, or the host is wrong.

    Connections made from now on wait until an Endpoint answers them.
    """
    taken: OSError | None = None
    for port in ports:
        try:
            return _listen(host, port)
        except socket.gaierror:
            raise
        except OSError as error:
            taken = error
    raise taken or OSError(f"No port to listen on was given for {host}")


def _listen(host: str, port: int) -> socket.socket:
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    # The protocol is named because asyncio sets TCP_NODELAY only then; without it each small answer takes 40 ms longer.
    sock = socket.socket(family, kind, socket.IPPROTO_TCP)
    try:
        if sys.platform == "win32":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        else:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(_BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


class Endpoint:
    """Serves from start() to stop(), once. It owns the socket, not the engine."""

    def __init__(self, engine: ThreadedEngine, settings: EndpointSettings, sock: socket.socket) -> None:
        self._engine = engine
        self._settings = settings
        self._socket = sock
        host, port = sock.getsockname()[:2]
        self.url = f"http://[{host}]:{port}/v1" if ":" in host else f"http://{host}:{port}/v1"
        self._loop: asyncio.AbstractEventLoop | None = None
        self._chat: ChatCompletions | None = None
        self._server: uvicorn.Server | None = None
        self._thread = threading.Thread(target=self._run, name="inglenook-endpoint", daemon=True)

    @property
    def running(self) -> bool:
        """Whether requests are answered."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begin to answer; returns once it does. Raises EngineError where the server cannot start."""
        self._thread.start()
        while not (self._server is not None and self._server.started):
            if not self._thread.is_alive():
                raise EngineError("The endpoint could not start. Try another port.")
            time.sleep(0.005)

    def stop(self, timeout_s: float = 2.0) -> None:
        """End all answers and join the thread. Idempotent. Past the timeout it returns all the same."""
        loop = self._loop
        if loop is not None and self._thread.is_alive():
            try:
                loop.call_soon_threadsafe(self._begin_stop)
            except RuntimeError:  # it ended by itself in this very moment
                pass
            self._thread.join(timeout_s)
        self._socket.close()

    def _begin_stop(self) -> None:
        assert self._chat is not None and self._server is not None
        self._chat.stop()
        self._server.should_exit = True

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception:
            # The top of the thread; start() or the owner's next look at `running` tells the user.
            logger.exception("The endpoint ended")

    async def _serve(self) -> None:
        workers = ThreadPoolExecutor(_NUM_WORKERS, thread_name_prefix="inglenook-worker")
        try:
            self._chat = ChatCompletions(self._engine, self._settings, workers)
            self._server = uvicorn.Server(
                uvicorn.Config(
                    build_app(self._engine, self._settings, self._chat),
                    http="h11",
                    ws="none",
                    lifespan="off",
                    interface="asgi3",
                    log_config=None,
                    access_log=False,
                    server_header=False,
                    proxy_headers=False,
                    backlog=_BACKLOG,
                    timeout_keep_alive=_KEEP_ALIVE_S,
                    timeout_graceful_shutdown=_GRACE_S,
                )
            )
            self._loop = asyncio.get_running_loop()
            await self._server.serve(sockets=[self._socket])
        finally:
            workers.shutdown(wait=False, cancel_futures=True)

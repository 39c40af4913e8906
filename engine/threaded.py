"""ThreadedEngine: the engine's public face. Callers queue instructions; answers come back through callbacks.

Owns the background thread, which loads models and runs Engine.step(), and through StreamBack the thread that calls
back. The instruction queue and the output queue are the only crossings, each one condition variable, and no lock is
held while a model loads or runs. Knows no file format, no device, no text and no Qt. What each instruction does to
running streams stands in ARCHITECTURE.md.

Every request that is added gets exactly one last delta, and every load exactly one last event. The threads live until
shutdown(): an error ends the requests or the load that it belongs to.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from engine.device_losses import DeviceLosses
from engine.emission import Emission
from engine.engine import Engine
from engine.errors import DeviceFailed, EngineError, EngineStopped, InvalidParameter, ModelNotLoaded
from engine.instruction_queue import InstructionQueue
from engine.instructions import (
    AbortRequest,
    AddRequest,
    Forget,
    Instruction,
    Load,
    LoadEvent,
    LoadFailed,
    QueryMetrics,
    Reset,
    Unload,
)
from engine.keeping import Keeping
from engine.load_attempt import SUPERSEDED, attempt_load, close_table
from engine.loading import LoadedModel, Loader, LoadOptions
from engine.metrics import EngineMetrics, MetricsSnapshot
from engine.open_request import OpenRequest
from engine.open_streams import OpenStreams, failed
from engine.remembering import remembering
from engine.request import Delta, FinishReason, Request
from engine.stream_back import Stream, StreamBack
from engine.trace import OFF, Trace

__all__ = ["LoadEvent", "LoadFailed", "ThreadedEngine"]

logger = logging.getLogger(__name__)

CLOSE_S = 3.0
"""The longest that the end of the engine waits for the disk."""

_NO_MODEL = "No model is loaded. Open a model first."
_SHUT_DOWN = "The engine was shut down. Start the app again."
_NO_MEMORY = "There is not enough memory to go on with this answer. Close other programs and send the message again."


class ThreadedEngine:
    """All public methods may be called from any thread; all but shutdown() return at once.

    Callbacks run on the stream-back thread, except that an engine which was shut down answers on the caller's.
    """

    def __init__(self, loader: Loader, trace: Trace = OFF) -> None:
        self._loader = loader
        self._trace = trace
        self.metrics = EngineMetrics()
        self._queue = InstructionQueue()
        # Touched by the background thread alone (model and options are read elsewhere, whole):
        self._engine: Engine | None = None
        self._model: LoadedModel | None = None
        self._options: LoadOptions | None = None
        self._loading = False
        self._parked: list[AddRequest] = []
        self._carried: list[OpenRequest] = []
        self._losses = DeviceLosses()
        self._num_forgotten = 0  # times that everything was; only a caller's thread counts it up
        self._keeping = Keeping()
        self._stream_back = StreamBack(trace)
        self._streams = OpenStreams(self._stream_back)
        self._background = threading.Thread(target=self._run, name="inglenook-engine", daemon=True)
        self._background.start()

    # -- the caller's side

    @property
    def model(self) -> LoadedModel | None:
        """The model that answers now; None before the first load, while one loads, and after a failure."""
        return self._model

    def load(self, options: LoadOptions, on_event: Callable[[LoadEvent], None]) -> None:
        """Load a model; progress, then LoadedModel or LoadFailed. A later load, unload or shutdown cancels it.

        What is loaded already with the same options stays. Otherwise the old model is let go first: its open requests
        end with "abort". Requests added from now on wait for the load.
        """
        self._put_load(options, on_event)

    def reload(self, on_event: Callable[[LoadEvent], None]) -> None:
        """Load the last model afresh, with the same options. Open requests go on where they were."""
        self._put_load(None, on_event)

    def unload(self) -> None:
        """Let the model go, ending its requests with "abort"."""
        self._queue.supersede_loads()
        self._queue.put(Unload())

    def reset(self) -> None:
        """End all requests with "abort" and forget what was computed for them, but on disk; the model stays."""
        self._queue.put(Reset())

    def forget(self, chat: str | None) -> None:
        """Let go of what is kept of a chat and no other one has, on disk too; with None, of everything.

        What is still being answered goes on, and is kept when it ends if its request names no chat: abort it first.
        Only while a model is loaded; engine.tiers.settings.forget_on_disk() needs none.
        """
        if chat is None:
            self._num_forgotten += 1
        self._queue.put(Forget(chat))

    def query_metrics(self, on_snapshot: Callable[[MetricsSnapshot], None]) -> None:
        """Call back once with the metrics between two steps; metrics.snapshot() does not wait for the one under way."""
        if not self._queue.put(QueryMetrics(on_snapshot)):
            on_snapshot(self.metrics.snapshot())

    def add_request(self, request: Request, on_delta: Callable[[Delta], None]) -> None:
        """Queue a request. Whatever is wrong with it arrives as a delta with finish_reason "error"."""
        if request.use_cache:
            on_delta = remembering(on_delta, partial(self._remember, request, self._num_forgotten))
        stream = Stream(on_delta, partial(self._abort_broken, request.request_id), request.n)
        if not self._queue.put(AddRequest(request, stream, time.perf_counter())):
            stream.deliver(failed(request.request_id, EngineStopped(_SHUT_DOWN)))

    def abort_request(self, request_id: str) -> None:
        """End a request with "abort". One that is not open is left alone."""
        self._queue.put(AbortRequest(request_id))

    def shutdown(self, timeout_s: float = 5.0) -> None:
        """End all requests with "abort", free the device and join both threads. Idempotent.

        Past the timeout it returns all the same; the threads are daemons and end when they can.
        """
        deadline = time.monotonic() + timeout_s
        self._queue.close()
        if self._background is not threading.current_thread():
            self._background.join(timeout_s)
        if self._background.is_alive() or not self._stream_back.join(max(0.0, deadline - time.monotonic())):
            logger.warning("The engine's threads did not end within %.1f s", timeout_s)

    def _put_load(self, options: LoadOptions | None, on_event: Callable[[LoadEvent], None]) -> None:
        if not self._queue.put(Load(options, on_event, self._queue.supersede_loads())):
            on_event(LoadFailed(_SHUT_DOWN, cancelled=True))

    def _remember(self, request: Request, num_forgotten: int, text: str, tokens: Sequence[int]) -> None:
        """On the stream-back thread. An answer cut at a stop string has tokens that its text has not: of no use."""
        model = self._model
        if model is not None and tokens and model.tokenizer.decode(tokens) == text:
            persist = request.persist and num_forgotten == self._num_forgotten
            model.answers.remember(text, tokens, chat=request.chat, persist=persist)

    def _abort_broken(self, request_id: str, stream: Stream) -> None:
        self._queue.put(AbortRequest(request_id, stream))

    # -- the background thread

    def _run(self) -> None:
        try:
            while self._queue.wait(self._has_work):
                while (instruction := self._queue.next()) is not None:
                    self._obey(instruction)
                if self._engine is not None and self._engine.has_work:
                    self._step(self._engine)
        finally:
            self._close()

    def _has_work(self) -> bool:
        return self._engine is not None and self._engine.has_work

    def _obey(self, instruction: Instruction) -> None:
        match instruction:
            case AddRequest():
                self._add(instruction)
            case AbortRequest():
                self._abort(instruction)
            case Load():
                self._load(instruction)
            case Unload():
                self._unload("abort")
            case Reset():
                self._end_all("abort")
                if self._engine is not None:
                    self._engine.clear_cache()
            case Forget(chat):
                if self._engine is not None and chat is None:
                    self._engine.clear_cache()
                elif self._engine is not None and chat is not None:
                    self._engine.forget(chat)
                self._keeping.forget(self._model, chat)
            case QueryMetrics():
                if self._engine is not None:
                    self._engine.state.note_gauges()
                self._stream_back.push([partial(instruction.on_snapshot, self.metrics.snapshot())])

    def _add(self, add: AddRequest) -> None:
        request_id = add.request.request_id
        if request_id in self._streams:
            message = f"A request with the id {request_id} is open already. Use another id."
            self._streams.answer(add.stream, failed(request_id, InvalidParameter(message)))
            return
        self._streams.open(request_id, add.stream)
        if self._loading:
            self._parked.append(add)
        elif self._engine is None:
            self._streams.fail(request_id, ModelNotLoaded(_NO_MODEL))
        else:
            try:
                self._engine.add_request(add.request, add.arrived)
            except EngineError as error:
                self.metrics.request_rejected()
                self._streams.fail(request_id, error)
            except MemoryError:
                self._streams.fail(request_id, EngineError(_NO_MEMORY))

    def _abort(self, abort: AbortRequest) -> None:
        request_id = abort.request_id
        if abort.stream is not None and not self._streams.belongs_to(request_id, abort.stream):
            return
        if self._engine is not None:
            self._engine.abort_request(request_id)
            self._streams.emit(self._engine.take_outbox())
        elif request_id in self._streams:
            self._parked = [add for add in self._parked if add.request.request_id != request_id]
            self._carried = [opened for opened in self._carried if opened.request.request_id != request_id]
            self._streams.emit([Emission(request_id, finish_reason="abort")])

    def _load(self, load: Load) -> None:
        options = load.options or self._options
        if self._queue.is_superseded(load):
            self._tell(load, SUPERSEDED)
        elif options is None:
            self._tell(load, LoadFailed(_NO_MODEL))
        elif self._model is not None and load.options == self._options:
            self._tell(load, self._model)
        else:
            if load.options is None:
                self._detach()
            else:
                self._unload("abort")
            self._options = options
            self._tell(load, self._run_loader(load, options))

    def _run_loader(self, load: Load, options: LoadOptions) -> LoadedModel | LoadFailed:
        def cancelled() -> bool:
            # A long load still answers aborts at once, and takes in requests that will wait for it.
            while (instruction := self._queue.next_while_loading()) is not None:
                self._obey(instruction)
            return self._queue.is_superseded(load)

        self._loading = True
        result = attempt_load(self._loader, options, partial(self._tell, load), cancelled, self._trace)
        self._loading = False
        self._take_over(result)
        return result

    def _take_over(self, result: LoadedModel | LoadFailed) -> None:
        """Start answering with a model that was loaded, or tell those who waited for it that it was not."""
        parked, self._parked = self._parked, []
        for add in parked:
            self._streams.forget(add.request.request_id)
        if isinstance(result, LoadedModel):
            store = self._keeping.open(result, self._options)
            self._engine = Engine(
                result.table,
                result.tokenizer,
                metrics=self.metrics,
                trace=self._trace,
                store=store,
                emit=self._streams.emit,
                software=result.software_adapter,
            )
            self._model = result
            carried, self._carried = self._carried, []
            self._engine.adopt(carried)
            self._streams.emit(self._engine.take_outbox())
            for add in parked:
                self._add(add)
        else:
            if not result.cancelled:
                self._end_all("error", result.message)
            reason: FinishReason = "abort" if result.cancelled else "error"
            error = None if result.cancelled else result.message
            for add in parked:
                emission = Emission(add.request.request_id, finish_reason=reason, error=error)
                self._streams.answer(add.stream, emission)

    def _detach(self) -> None:
        """Let the model go and keep its open requests for the next one."""
        if self._engine is not None:
            self._streams.emit(self._engine.take_outbox())  # what a step told before it failed
            self._carried += self._engine.detach()
        model, self._model, self._engine = self._model, None, None
        self.metrics.set_gauges(0, 0, 0, 0, 0)
        if model is not None:
            close_table(model)

    def _unload(self, reason: FinishReason, error: str | None = None) -> None:
        self._end_all(reason, error)
        if self._engine is not None:
            self._keeping.save_rest(self._engine)
        self._detach()

    def _step(self, engine: Engine) -> None:
        try:
            engine.step()
            self._streams.emit(engine.take_outbox())
        except DeviceFailed as error:
            self._rebuild(error)
        except MemoryError:
            logger.exception("There was not enough memory for a step")
            self._end_all("error", _NO_MEMORY)
        except Exception as error:
            # A fault of the engine itself, which no request can be blamed for; the thread must outlive it.
            logger.exception("A step failed")
            self._end_all("error", f"The engine failed ({type(error).__name__}: {error}). Send the message again.")

    def _rebuild(self, error: DeviceFailed) -> None:
        """Load the same model on a fresh device; open requests go on from what they were told.

        A device that is lost again and again ends the requests instead, and so does a load that fails.
        """
        options = self._options
        if not self._losses.note() or options is None:
            logger.error("The device failed; the model is unloaded: %s", error)
            self._unload("error", str(error))
            return
        logger.warning("The device failed; the model is loaded again: %s", error)
        load = Load(None, lambda event: None, self._queue.newest_load)
        self._detach()
        self._run_loader(load, options)

    def _end_all(self, reason: FinishReason, error: str | None = None) -> None:
        """End every open request, also where the engine's own books can no longer be trusted."""
        if self._engine is not None:
            try:
                self._engine.end_all(reason, error)
            except Exception:
                # The books themselves are wrong: the callers are told below all the same, and the thread lives on.
                logger.exception("The ledger is damaged; the model is unloaded")
                self._engine.state.restorer.close()  # or a reader would wait for it for ever
                damaged, self._model, self._engine = self._model, None, None
                if damaged is not None:
                    close_table(damaged)
            else:
                self._streams.emit(self._engine.take_outbox())
        self._parked.clear()
        self._carried.clear()
        self._streams.end_all(reason, error)

    def _tell(self, load: Load, event: LoadEvent) -> None:
        self._stream_back.push([partial(load.on_event, event)])

    def _close(self) -> None:
        """Answer everything that is still open, then end the other thread too."""
        while (instruction := self._queue.next()) is not None:
            match instruction:
                case AddRequest(request, stream):
                    self._streams.answer(stream, Emission(request.request_id, finish_reason="abort"))
                case Load():
                    self._tell(instruction, SUPERSEDED)
                case QueryMetrics() | Forget():
                    self._obey(instruction)
        self._unload("abort")
        self._stream_back.close()
        self._keeping.close(CLOSE_S)

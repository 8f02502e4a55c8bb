"""Blocking client: one gRPC channel, one stream RPC per generation.

Uses the generated stub rather than tritonclient's own client, which allows one active stream.
Safe to use from many threads; each BlockStream has one reader, and anyone may cancel it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

import grpc
from tritonclient.grpc import service_pb2_grpc

from . import health as health_module
from .connection import Connection, error_from_rpc
from .errors import Cancelled, ClientError
from .session import CallSettings, Session, split_options
from .types import BlockEvent, Generation, Health, Messages, RequestOptions, RetryPolicy
from .watchdog import Watchdog
from .wire import input_values

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

_DRAIN_SECONDS = 1.0


class BlockStream(Iterator[BlockEvent]):
    """Blocks of one generation, as they arrive. ``close`` or ``cancel`` ends the RPC.

    After ``close`` iteration just stops; after ``cancel`` a waiting reader gets Cancelled.
    """

    def __init__(
        self, session: Session, watchdog: Watchdog, open_call: Callable[[Any, float | None], Any]
    ) -> None:
        self._session = session
        self._watchdog = watchdog
        self._open_call = open_call
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._is_done = False
        self._call: Any = None
        self._open()

    @property
    def request_id(self) -> str:
        return self._session.request_id

    @property
    def generation(self) -> Generation:
        """What has arrived so far."""
        return self._session.generation()

    def result(self) -> Generation:
        """Read to the end and return the whole answer."""
        for _ in self:
            pass
        return self.generation

    def cancel(self) -> None:
        """Stop the generation; may be called from any thread, any number of times."""
        with self._lock:
            self._stopped.set()
            call = self._call
        call.cancel()

    def close(self) -> None:
        """Cancel what is still running and forget the rest; later reads just end."""
        if self._is_done:
            return
        self._is_done = True
        if self._session.has_final_block:
            self._drain()
        else:
            self.cancel()

    def __next__(self) -> BlockEvent:
        if self._is_done:
            raise StopIteration
        try:
            event = self._next_event()
        except BaseException:
            self._is_done = True
            self._call.cancel()
            raise
        if event is None:
            self._is_done = True
            raise StopIteration
        if self._session.has_final_flag:
            self._drain()
            self._is_done = True
        return event

    def _next_event(self) -> BlockEvent | None:
        """The next block, over as many attempts as it takes; None at the end."""
        if self._session.has_final_block:
            self._drain()
            return None
        while True:
            try:
                message = self._read()
                if message is None:
                    self._session.check_complete()
                    return None
                event = self._session.accept(message)
                if event is not None:
                    return event
            except ClientError as error:
                if self._session.has_error_message:
                    self._drain()
                self._wait_before_retry(self._session.retry_delay(error))
                self._open()

    def _open(self) -> None:
        with self._lock:
            if self._stopped.is_set():
                raise self._cancelled()
            request = self._session.next_attempt()
            self._call = self._open_call(request, self._session.remaining())

    def _read(self) -> Any:
        """One message, or None at the end of the stream; raises typed errors."""
        limit = self._session.settings.silence_timeout
        key = None if limit is None else self._watchdog.arm(limit, self._call.cancel)
        error: ClientError | None = None
        message = None
        try:
            message = next(self._call, None)
        except grpc.RpcError as rpc_error:
            error = error_from_rpc(rpc_error)
            if rpc_error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                error = self._session.deadline_error()
        finally:
            is_silent = key is not None and not self._watchdog.disarm(key)
        if self._stopped.is_set():
            raise self._cancelled()
        if is_silent:
            raise self._session.silence_error()
        if error is not None:
            raise error
        return message

    def _wait_before_retry(self, seconds: float) -> None:
        if self._stopped.wait(seconds):
            raise self._cancelled()

    def _drain(self) -> None:
        """Let the RPC end by itself once the server has said its last word.

        Triton 2.51 never lets go of a request whose stream is cancelled right after an error, and
        then cannot stop in time.
        """
        key = self._watchdog.arm(_DRAIN_SECONDS, self._call.cancel)
        try:
            for _ in self._call:
                pass
        except grpc.RpcError:
            pass
        finally:
            self._watchdog.disarm(key)

    def _cancelled(self) -> Cancelled:
        return Cancelled("cancelled by the caller", request_id=self.request_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class Client:
    """Typed client of a block-diffusion model behind Triton Inference Server.

    ``deadline`` and ``silence_timeout`` are seconds and may be overridden per call. Without a
    deadline a generation may take as long as blocks keep coming; without a block (or the first
    one, which includes time in the server's queue) for ``silence_timeout`` it is given up.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        model: str = "ensemble",
        deadline: float | None = None,
        silence_timeout: float | None = 60.0,
        retry: RetryPolicy | None = None,
        connection: Connection | None = None,
    ) -> None:
        self._connection = connection or Connection(url=url)
        self._settings = CallSettings(model, deadline, silence_timeout, retry or RetryPolicy())
        arguments = self._connection.channel_arguments()
        credentials = self._connection.credentials()
        target = self._connection.target
        if credentials is None:
            self._channel = grpc.insecure_channel(target, options=arguments)
        else:
            self._channel = grpc.secure_channel(target, credentials, options=arguments)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._watchdog = Watchdog()
        self._streams: weakref.WeakSet[BlockStream] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._is_closed = False

    @property
    def url(self) -> str:
        return self._connection.shown_url

    def generate(
        self,
        prompt: str | None = None,
        *,
        messages: str | Messages | None = None,
        **options: Unpack[RequestOptions],
    ) -> Generation:
        """The whole answer to ``prompt`` or to chat ``messages``."""
        with self.stream(prompt, messages=messages, **options) as stream:
            return stream.result()

    def stream(
        self,
        prompt: str | None = None,
        *,
        messages: str | Messages | None = None,
        **options: Unpack[RequestOptions],
    ) -> BlockStream:
        """Start a generation now and iterate over its blocks; use it in a ``with`` block."""
        settings, fields = split_options(self._settings, options)
        session = Session(settings, input_values(prompt, messages, fields))
        stream = BlockStream(session, self._watchdog, self._open_call)
        with self._lock:
            self._streams.add(stream)
        return stream

    def health(self, timeout: float = 5.0) -> Health:
        """What the server says of itself; an unreachable server is an answer, not an exception."""
        metadata = self._connection.metadata()

        def ask(method: str, request: Any) -> Any:
            return getattr(self._stub, method)(request, timeout=timeout, metadata=metadata)

        questions = health_module.questions(self.url, self._settings.model)
        reply: Any = None
        while True:
            try:
                method, request = questions.send(reply)
            except StopIteration as done:
                result: Health = done.value
                return result
            try:
                reply = ask(method, request)
            except grpc.RpcError as error:
                reply = error_from_rpc(error)

    def close(self) -> None:
        """Cancel every running stream and close the channel."""
        with self._lock:
            self._is_closed = True
            streams = list(self._streams)
        for stream in streams:
            stream.cancel()
        self._watchdog.close()
        self._channel.close()

    def _open_call(self, request: Any, timeout: float | None) -> Any:
        if self._is_closed:
            raise ClientError("the client is closed")
        return self._stub.ModelStreamInfer(
            iter((request,)), timeout=timeout, metadata=self._connection.stream_metadata()
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

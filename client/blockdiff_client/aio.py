"""Asyncio client: the same calls as ``Client``, on grpc.aio.

One channel per client, made in the loop that first uses it; use a client from one loop only.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

import grpc
from tritonclient.grpc import service_pb2_grpc

from . import health as health_module
from .connection import Connection, error_from_rpc
from .errors import Cancelled, ClientError
from .session import CallSettings, Session, split_options
from .types import BlockEvent, Generation, Health, Messages, RequestOptions, RetryPolicy
from .wire import input_values

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

_DRAIN_SECONDS = 1.0


class AsyncBlockStream(AsyncIterator[BlockEvent]):
    """Blocks of one generation, as they arrive. ``aclose`` or ``cancel`` ends the RPC.

    After ``aclose`` iteration just stops; after ``cancel`` a waiting reader gets Cancelled.
    Cancelling the task that reads cancels the RPC too.
    """

    def __init__(self, session: Session, open_call: Callable[[Any, float | None], Any]) -> None:
        self._session = session
        self._open_call = open_call
        self._stopped = asyncio.Event()
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

    async def result(self) -> Generation:
        """Read to the end and return the whole answer."""
        async for _ in self:
            pass
        return self.generation

    def cancel(self) -> None:
        """Stop the generation; any number of times, from the loop's thread."""
        self._stopped.set()
        self._call.cancel()

    async def aclose(self) -> None:
        """Cancel what is still running and forget the rest; later reads just end."""
        if self._is_done:
            return
        self._is_done = True
        if self._session.has_final_block:
            await self._drain()
        else:
            self.cancel()

    async def __anext__(self) -> BlockEvent:
        if self._is_done:
            raise StopAsyncIteration
        try:
            event = await self._next_event()
        except BaseException:
            self._is_done = True
            self._call.cancel()
            raise
        if event is None:
            self._is_done = True
            raise StopAsyncIteration
        if self._session.has_final_flag:
            await self._drain()
            self._is_done = True
        return event

    async def _next_event(self) -> BlockEvent | None:
        """The next block, over as many attempts as it takes; None at the end."""
        if self._session.has_final_block:
            await self._drain()
            return None
        while True:
            try:
                message = await self._read()
                if message is None:
                    self._session.check_complete()
                    return None
                event = self._session.accept(message)
                if event is not None:
                    return event
            except ClientError as error:
                if self._session.has_error_message:
                    await self._drain()
                await self._wait_before_retry(self._session.retry_delay(error))
                self._open()

    def _open(self) -> None:
        request = self._session.next_attempt()
        self._call = self._open_call(request, self._session.remaining())

    async def _read(self) -> Any:
        """One message, or None at the end of the stream; raises typed errors."""
        limit = self._session.settings.silence_timeout
        try:
            message = await asyncio.wait_for(self._call.read(), limit)
        except asyncio.TimeoutError:
            self._call.cancel()
            raise self._session.silence_error() from None
        except asyncio.CancelledError:
            # grpc.aio reports a call cancelled on this side as if the task had been cancelled.
            if self._stopped.is_set():
                raise self._cancelled() from None
            raise
        except grpc.RpcError as rpc_error:
            if self._stopped.is_set():
                raise self._cancelled() from None
            if rpc_error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise self._session.deadline_error() from None
            raise error_from_rpc(rpc_error) from None
        return None if message is grpc.aio.EOF else message

    async def _wait_before_retry(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stopped.wait(), seconds)
        except asyncio.TimeoutError:
            return
        raise self._cancelled()

    async def _drain(self) -> None:
        """Let the RPC end by itself once the server has said its last word.

        Triton 2.51 never lets go of a request whose stream is cancelled right after an error, and
        then cannot stop in time.
        """
        try:
            await asyncio.wait_for(self._read_rest(), _DRAIN_SECONDS)
        except (grpc.RpcError, asyncio.TimeoutError):
            self._call.cancel()

    async def _read_rest(self) -> None:
        while await self._call.read() is not grpc.aio.EOF:
            pass

    def _cancelled(self) -> Cancelled:
        return Cancelled("cancelled by the caller", request_id=self.request_id)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()


class AsyncClient:
    """Asyncio twin of ``Client``; see there for what the arguments mean."""

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
        self._target = self._connection.target
        self._settings = CallSettings(model, deadline, silence_timeout, retry or RetryPolicy())
        self._channel: Any = None
        self._stub: Any = None
        self._streams: weakref.WeakSet[AsyncBlockStream] = weakref.WeakSet()
        self._is_closed = False

    @property
    def url(self) -> str:
        return self._connection.shown_url

    async def generate(
        self,
        prompt: str | None = None,
        *,
        messages: str | Messages | None = None,
        **options: Unpack[RequestOptions],
    ) -> Generation:
        """The whole answer to ``prompt`` or to chat ``messages``."""
        async with self.stream(prompt, messages=messages, **options) as stream:
            return await stream.result()

    def stream(
        self,
        prompt: str | None = None,
        *,
        messages: str | Messages | None = None,
        **options: Unpack[RequestOptions],
    ) -> AsyncBlockStream:
        """Start a generation now (in the running loop) and iterate over its blocks."""
        settings, fields = split_options(self._settings, options)
        session = Session(settings, input_values(prompt, messages, fields))
        stream = AsyncBlockStream(session, self._open_call)
        self._streams.add(stream)
        return stream

    async def health(self, timeout: float = 5.0) -> Health:
        """What the server says of itself; an unreachable server is an answer, not an exception."""
        metadata = self._connection.metadata()
        questions = health_module.questions(self.url, self._settings.model)
        reply: Any = None
        while True:
            try:
                method, request = questions.send(reply)
            except StopIteration as done:
                result: Health = done.value
                return result
            try:
                ask = getattr(self._connected_stub(), method)
                reply = await ask(request, timeout=timeout, metadata=metadata)
            except grpc.RpcError as error:
                reply = error_from_rpc(error)

    async def aclose(self) -> None:
        """Cancel every running stream and close the channel."""
        self._is_closed = True
        for stream in list(self._streams):
            stream.cancel()
        if self._channel is not None:
            await self._channel.close()

    def _connected_stub(self) -> Any:
        if self._is_closed:
            raise ClientError("the client is closed")
        if self._stub is None:
            arguments = self._connection.channel_arguments()
            credentials = self._connection.credentials()
            if credentials is None:
                self._channel = grpc.aio.insecure_channel(self._target, options=arguments)
            else:
                self._channel = grpc.aio.secure_channel(
                    self._target, credentials, options=arguments
                )
            self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        return self._stub

    def _open_call(self, request: Any, timeout: float | None) -> Any:
        return self._connected_stub().ModelStreamInfer(
            iter((request,)), timeout=timeout, metadata=self._connection.stream_metadata()
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

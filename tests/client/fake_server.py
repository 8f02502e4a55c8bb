"""A scripted stand-in for Triton Inference Server's gRPC service, in this process.

Each request plays the next script: a list of steps (blocks, pauses, errors). It checks nothing and
knows no model; it records what arrived and which streams were cancelled.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent import futures
from dataclasses import dataclass, field
from typing import Any, NoReturn

import grpc
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc


@dataclass(frozen=True)
class Block:
    """One data response. ``flag`` is Triton's own final flag, which may come without data later."""

    text: str = ""
    index: int = 0
    steps: int = 2
    tokens: int = 4
    reasoning: str = ""
    tool_calls: str = ""
    is_malformed: bool = False
    finish: str = ""
    stop: str = ""
    final: bool = False
    flag: bool = False
    log_probs: tuple[float, ...] = ()
    threshold: float | None = None
    canvas: str = ""


@dataclass(frozen=True)
class FlagOnly:
    """A final response without data."""


@dataclass(frozen=True)
class Abort:
    """End the stream with a gRPC status, as Triton does with header `triton_grpc_error`."""

    code: grpc.StatusCode
    text: str


@dataclass(frozen=True)
class InBand:
    """An error message inside the stream, which stays open."""

    text: str


@dataclass(frozen=True)
class Pause:
    seconds: float


@dataclass(frozen=True)
class Hang:
    """Send nothing until the client goes away."""


Step = Block | FlagOnly | Abort | InBand | Pause | Hang


def answer(*texts: str, finish: str = "stop") -> list[Step]:
    """A well-behaved answer: the last block carries the final flag."""
    last = len(texts) - 1
    return [
        Block(text, index, final=index == last, flag=index == last, finish=finish * (index == last))
        for index, text in enumerate(texts)
    ]


def _response(request: Any, block: Block) -> Any:
    message = service_pb2.ModelStreamInferResponse()
    response = message.infer_response
    response.model_name, response.id = request.model_name, request.id

    def add(name: str, datatype: str, raw: bytes, count: int = 1) -> None:
        tensor = response.outputs.add()
        tensor.name, tensor.datatype = name, datatype
        tensor.shape.extend([1, count])
        response.raw_output_contents.append(raw)

    texts = {
        "text_output": block.text,
        "reasoning_output": block.reasoning,
        "tool_calls": block.tool_calls,
        "finish_reason": block.finish,
        "stop_reason": block.stop,
        "canvas": block.canvas,
    }
    for name, text in texts.items():
        data = text.encode()
        add(name, "BYTES", struct.pack("<I", len(data)) + data)
    numbers = {
        "num_input_tokens": 7,
        "num_output_tokens": block.tokens,
        "num_reasoning_tokens": len(block.reasoning),
        "block_index": block.index,
        "denoise_steps_used": block.steps,
    }
    for name, number in numbers.items():
        add(name, "INT32", struct.pack("<i", number))
    if block.threshold is not None:
        add("threshold_used", "FP32", struct.pack("<f", block.threshold))
    add("has_malformed_tool_call", "BOOL", struct.pack("<?", block.is_malformed))
    add("is_final", "BOOL", struct.pack("<?", block.final))
    count = len(block.log_probs)
    add("output_log_probs", "FP32", struct.pack(f"<{count}f", *block.log_probs), count)
    response.parameters["triton_final_response"].bool_param = block.flag
    return message


def read_inputs(request: Any) -> dict[str, Any]:
    """Input values of a ModelInferRequest by tensor name; [1, 1] tensors as scalars."""
    formats = {"INT32": "<i", "UINT64": "<Q", "FP32": "<f", "BOOL": "<?"}
    values: dict[str, Any] = {}
    for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True):
        if tensor.datatype == "BYTES":
            items: list[Any] = []
            while raw:
                (size,) = struct.unpack_from("<I", raw)
                items.append(raw[4 : 4 + size].decode())
                raw = raw[4 + size :]
        else:
            items = [value for (value,) in struct.iter_unpack(formats[tensor.datatype], raw)]
        assert list(tensor.shape) == [1, len(items)]
        values[tensor.name] = items if tensor.name.endswith("_words") else items[0]
    return values


@dataclass
class Seen:
    """What one stream brought."""

    request: Any
    inputs: dict[str, Any]
    metadata: dict[str, str]
    cancelled: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)


class FakeTriton(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Plays ``scripts`` in order, then ``default`` for ever."""

    def __init__(self, port: int = 0, workers: int = 80) -> None:
        self.scripts: list[Sequence[Step]] = []
        self.default: Sequence[Step] = answer("hello", " world")
        self.seen: list[Seen] = []
        self.is_ready = True
        self._lock = threading.Lock()
        self._server = grpc.server(futures.ThreadPoolExecutor(workers))
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self.url = f"127.0.0.1:{self.port}"
        self._server.start()

    def stop(self) -> None:
        self._server.stop(0).wait()

    def wait_for_requests(self, count: int, seconds: float = 5.0) -> None:
        end = time.monotonic() + seconds
        while len(self.seen) < count:
            assert time.monotonic() < end, f"{len(self.seen)} of {count} requests arrived"
            time.sleep(0.005)

    def ModelStreamInfer(self, request_iterator: Iterator[Any], context: Any) -> Iterator[Any]:
        for request in request_iterator:
            seen = Seen(request, read_inputs(request), dict(context.invocation_metadata()))
            with self._lock:
                self.seen.append(seen)
                script = self.scripts.pop(0) if self.scripts else self.default
            context.add_callback(lambda seen=seen: self._note_end(seen))
            for step in script:
                yield from self._play(step, request, context)
            seen.ended.set()

    @staticmethod
    def _note_end(seen: Seen) -> None:
        if not seen.ended.is_set():
            seen.cancelled.set()

    def _play(self, step: Step, request: Any, context: Any) -> Iterator[Any]:
        if isinstance(step, Block):
            yield _response(request, step)
        elif isinstance(step, FlagOnly):
            message = service_pb2.ModelStreamInferResponse()
            message.infer_response.id = request.id
            message.infer_response.parameters["triton_final_response"].bool_param = True
            yield message
        elif isinstance(step, InBand):
            yield service_pb2.ModelStreamInferResponse(error_message=step.text)
        elif isinstance(step, Abort):
            self._abort(step, context)
        else:
            end = time.monotonic() + (step.seconds if isinstance(step, Pause) else 60)
            while context.is_active() and time.monotonic() < end:
                time.sleep(0.01)

    @staticmethod
    def _abort(step: Abort, context: Any) -> NoReturn:
        context.abort(step.code, step.text)
        raise AssertionError("abort does not return")

    def ServerLive(self, request: Any, context: Any) -> Any:
        return service_pb2.ServerLiveResponse(live=True)

    def ServerReady(self, request: Any, context: Any) -> Any:
        return service_pb2.ServerReadyResponse(ready=self.is_ready)

    def ServerMetadata(self, request: Any, context: Any) -> Any:
        return service_pb2.ServerMetadataResponse(name="triton", version="2.51.0")

    def RepositoryIndex(self, request: Any, context: Any) -> Any:
        reply = service_pb2.RepositoryIndexResponse()
        for name in ("block_diffusion", "ensemble"):
            reply.models.add(name=name, version="1", state="READY" if self.is_ready else "LOADING")
        return reply

    def ModelReady(self, request: Any, context: Any) -> Any:
        return service_pb2.ModelReadyResponse(ready=self.is_ready)

    def ModelConfig(self, request: Any, context: Any) -> Any:
        config = model_config_pb2.ModelConfig(name=request.name)
        if request.name == "block_diffusion":
            config.parameters["max_context"].string_value = "512"
            config.parameters["model_dir"].string_value = "/models/demo"
            config.dynamic_batching.default_queue_policy.max_queue_size = 64
            config.dynamic_batching.priority_levels = 2
        return service_pb2.ModelConfigResponse(config=config)


def tool_call_json(name: str, **arguments: Any) -> str:
    return json.dumps([{"name": name, "arguments": arguments}])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

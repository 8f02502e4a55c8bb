"""Small callers of a running server: gRPC streams, HTTP generate and metrics. No assertions."""

import contextlib
import http.client
import json
import queue
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from blockdiff.embedded import TritonServer
from blockdiff.serving.fields import BY_NAME, CANONICAL, OUTPUTS, Kind

WAIT_SECONDS = 60.0
LISTS = frozenset(output.name for output in OUTPUTS if output.is_list)
_WIRE: dict[Kind, tuple[str, Any]] = {
    Kind.STRING: ("BYTES", np.object_),
    Kind.INT32: ("INT32", np.int32),
    Kind.UINT64: ("UINT64", np.uint64),
    Kind.FP32: ("FP32", np.float32),
    Kind.BOOL: ("BOOL", np.bool_),
}


def script(text: str, **behaviour: Any) -> str:
    """A prompt for the scripted engine."""
    return json.dumps({"text": text, **behaviour})


def inputs(values: dict[str, Any]) -> list[grpcclient.InferInput]:
    made = []
    for name, value in values.items():
        datatype, dtype = _WIRE[BY_NAME[CANONICAL[name]].kind]
        items = value if isinstance(value, list) else [value]
        items = [item.encode() if isinstance(item, str) else item for item in items]
        tensor = grpcclient.InferInput(name, [1, len(items)], datatype)
        tensor.set_data_from_numpy(np.array([items], dtype=dtype))
        made.append(tensor)
    return made


class Response(NamedTuple):
    id: str
    values: dict[str, Any]
    parameters: dict[str, Any]
    error: InferenceServerException | None


def read_result(result: Any, error: InferenceServerException | None = None) -> Response:
    if error is not None:
        return Response(str(error), {}, {}, error)
    raw = result.get_response()
    values = {}
    for output in raw.outputs:
        items = result.as_numpy(output.name).reshape(-1).tolist()
        items = [item.decode() if isinstance(item, bytes) else item for item in items]
        # outputs of block_diffusion itself that are lists have other names
        is_list = output.name in LISTS or len(items) != 1
        values[output.name] = items if is_list else items[0]
    parameters = {
        name: getattr(item, item.WhichOneof("parameter_choice"))
        for name, item in raw.parameters.items()
    }
    return Response(raw.id, values, parameters, None)


class Stream:
    """One gRPC stream; requests may overlap on it."""

    def __init__(self, server: TritonServer) -> None:
        self._client = grpcclient.InferenceServerClient(server.grpc_url)
        self._responses: queue.Queue[Response] = queue.Queue()
        self._client.start_stream(
            callback=lambda result, error: self._responses.put(read_result(result, error))
        )

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.cancel()
        self._client.close()

    def send(self, values: dict[str, Any], model: str = "ensemble", **options: Any) -> None:
        self._client.async_stream_infer(
            model, inputs(values), enable_empty_final_response=True, **options
        )

    def send_raw(self, tensors: list[grpcclient.InferInput], model: str, **options: Any) -> None:
        self._client.async_stream_infer(model, tensors, enable_empty_final_response=True, **options)

    def next(self, timeout: float = WAIT_SECONDS) -> Response:
        return self._responses.get(timeout=timeout)

    def cancel(self) -> None:
        with contextlib.suppress(Exception):
            self._client.stop_stream(cancel_requests=True)

    def collect(self, count: int = 1) -> dict[str, list[Response]]:
        """All responses by request id until ``count`` requests have had their final one."""
        found: dict[str, list[Response]] = {}
        while count:
            response = self.next()
            found.setdefault(response.id, []).append(response)
            if response.error is not None or response.parameters.get("triton_final_response"):
                count -= 1
        return found


def stream_all(server: TritonServer, values: dict[str, Any], **options: Any) -> list[Response]:
    """Every response of one request, the final one or the error last."""
    with Stream(server) as stream:
        stream.send(values, **options)
        return [response for responses in stream.collect().values() for response in responses]


class Answer(NamedTuple):
    text: str
    reasoning: str
    calls: list[Any]
    finish_reason: str
    num_output_tokens: int
    has_malformed_call: bool


def joined(values: list[dict[str, Any]]) -> Answer:
    calls = [call for v in values for call in json.loads(v["tool_calls"] or "[]")]
    for call in calls:
        # Ids name the request, so they differ between two calls with equal answers.
        call.pop("id")
    return Answer(
        "".join(v["text_output"] for v in values),
        "".join(v["reasoning_output"] for v in values),
        calls,
        values[-1]["finish_reason"],
        sum(v["num_output_tokens"] for v in values),
        any(v["has_malformed_tool_call"] for v in values),
    )


def post(server: TritonServer, path: str, body: Any, timeout: float = WAIT_SECONDS) -> Any:
    """Status and decoded body of one HTTP call; ``body`` bytes are sent as they are."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{server.http_url}{path}", data, headers)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def generate(server: TritonServer, values: dict[str, Any], model: str = "ensemble") -> Any:
    status, body = post(server, f"/v2/models/{model}/generate", values)
    return status, json.loads(body)


def infer(server: TritonServer, values: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """``unary`` by plain /infer."""
    tensors = []
    for name, value in values.items():
        items = value if isinstance(value, list) else [value]
        datatype = _WIRE[BY_NAME[CANONICAL[name]].kind][0]
        tensors.append(
            {"name": name, "shape": [1, len(items)], "datatype": datatype, "data": items}
        )
    status, body = post(server, "/v2/models/unary/infer", {"inputs": tensors})
    decoded = json.loads(body)
    if status != 200:
        return status, decoded
    return status, {output["name"]: output["data"][0] for output in decoded["outputs"]}


class HttpStream:
    """/generate_stream of the ensemble, read event by event; ``close`` drops the connection."""

    def __init__(self, server: TritonServer, values: dict[str, Any]) -> None:
        self._connection = http.client.HTTPConnection(
            server.reachable_host, server.ports.http, timeout=WAIT_SECONDS
        )
        body = json.dumps({"stream": True, **values})
        self._connection.request("POST", "/v2/models/ensemble/generate_stream", body)
        self._answer = self._connection.getresponse()
        self.status = self._answer.status

    def events(self) -> Iterator[dict[str, Any]]:
        try:
            while line := self._answer.readline():
                if line.startswith(b"data: "):
                    yield json.loads(line[6:])
        finally:
            self.close()

    def close(self) -> None:
        self._answer.close()
        self._connection.close()


def metric(server: TritonServer, name: str, **labels: str) -> float:
    """Sum of the samples of ``name`` that carry ``labels``."""
    with urllib.request.urlopen(server.metrics_url, timeout=WAIT_SECONDS) as answer:
        lines = answer.read().decode().splitlines()
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    found = [line for line in lines if line.startswith((f"{name}{{", f"{name} "))]
    return sum(float(line.rsplit(" ", 1)[1]) for line in found if all(w in line for w in wanted))


def wait_until(holds: Callable[[], bool], seconds: float, what: str) -> float:
    """Seconds until ``holds``; fails the test when it does not."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < seconds, f"not within {seconds} s: {what}"
        time.sleep(0.02)
    return time.monotonic() - began

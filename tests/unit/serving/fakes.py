"""A stand-in for ``triton_python_backend_utils`` with the few parts that the models use."""

import json
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1


class TritonModelException(Exception):
    pass


class TritonError:
    INTERNAL, INVALID_ARG, UNAVAILABLE, UNSUPPORTED, NOT_FOUND, CANCELLED = range(6)

    def __init__(self, text: str, code: int = 0) -> None:
        self._text, self._code = text, code

    def message(self) -> str:
        return self._text

    def code(self) -> int:
        return self._code

    def __str__(self) -> str:
        return self._text


class Tensor:
    def __init__(self, name: str, array: np.ndarray) -> None:
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> np.ndarray:
        return self._array


class InferenceResponse:
    def __init__(
        self, output_tensors: Sequence[Tensor] = (), error: TritonError | None = None
    ) -> None:
        self._tensors, self._error = list(output_tensors), error

    def output_tensors(self) -> list[Tensor]:
        return self._tensors

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error

    def values(self) -> dict[str, Any]:
        return {t.name(): t.as_numpy().reshape(-1).tolist() for t in self._tensors}


class Sender:
    """Records what is sent; asking or sending after the final response fails the test."""

    def __init__(self) -> None:
        self.sent: list[tuple[InferenceResponse, int]] = []
        self.is_gone = False
        self.misuse: list[str] = []
        self.threads: set[str] = set()
        self.done = threading.Event()
        self.fail_with: Exception | None = None

    def send(self, response: InferenceResponse, flags: int = 0) -> None:
        if self.done.is_set():
            self.misuse.append("send after final")
        if self.fail_with is not None:
            raise self.fail_with
        self.threads.add(threading.current_thread().name)
        self.sent.append((response, flags))
        if flags:
            self.done.set()

    def is_cancelled(self) -> bool:
        if self.done.is_set():
            self.misuse.append("is_cancelled after final")
        return self.is_gone


class Request:
    def __init__(
        self,
        tensors: Sequence[Tensor] = (),
        parameters: dict[str, Any] | None = None,
        timeout: int = 0,
        outputs: Sequence[str] = (),
    ) -> None:
        self.tensors = {tensor.name(): tensor for tensor in tensors}
        self.sender = Sender()
        self.is_gone = False
        self._parameters = parameters or {}
        self._timeout = timeout
        self._outputs = list(outputs)

    def get_response_sender(self) -> Sender:
        return self.sender

    def parameters(self) -> str:
        return json.dumps(self._parameters)

    def timeout(self) -> int:
        return self._timeout

    def request_id(self) -> str:
        return ""

    def is_cancelled(self) -> bool:
        return self.is_gone

    def requested_output_names(self) -> list[str]:
        return self._outputs


def get_input_tensor_by_name(request: Request, name: str) -> Tensor | None:
    return request.tensors.get(name)


class Logger:
    lines: list[str] = []

    @classmethod
    def log_error(cls, text: str) -> None:
        cls.lines.append(text)

    log_warn = log_info = log_verbose = log_error


class Metric:
    def __init__(self, labels: dict[str, str]) -> None:
        self.labels, self.value, self.calls = labels, 0.0, 0

    def set(self, value: float) -> None:
        self.value, self.calls = value, self.calls + 1

    def increment(self, value: float) -> None:
        self.value, self.calls = self.value + value, self.calls + 1


class MetricFamily:
    GAUGE, COUNTER = "gauge", "counter"

    def __init__(self, name: str, description: str, kind: str) -> None:
        self.name, self.kind, self.metrics = name, kind, []

    def Metric(self, labels: dict[str, str]) -> Metric:  # noqa: N802
        self.metrics.append(Metric(labels))
        return self.metrics[-1]

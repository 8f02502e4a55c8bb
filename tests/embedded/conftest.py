"""A trivial model repository, servers on it, and clients that talk to them."""

import queue
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc

from blockdiff.embedded import TritonServer
from blockdiff.embedded.processes import is_alive

REPOSITORY = Path(__file__).resolve().parent / "repository"
SHARED_MEMORY = Path("/dev/shm")


class CountStream:
    """One open gRPC stream to the model `counter`; what arrives is an index or an exception."""

    def __init__(self, url: str, count: int, delay: float) -> None:
        self.client = triton_grpc.InferenceServerClient(url)
        self._arrived: queue.Queue[int | Exception] = queue.Queue()
        self.client.start_stream(self._receive)
        inputs = [
            triton_grpc.InferInput("COUNT", [1], "INT32"),
            triton_grpc.InferInput("DELAY", [1], "FP32"),
        ]
        inputs[0].set_data_from_numpy(np.array([count], np.int32))
        inputs[1].set_data_from_numpy(np.array([delay], np.float32))
        self.client.async_stream_infer("counter", inputs)

    def _receive(self, result, error) -> None:
        self._arrived.put(error if error else int(result.as_numpy("INDEX")[0]))

    def next(self, timeout: float = 20) -> int | Exception:
        return self._arrived.get(timeout=timeout)

    def close(self) -> None:
        self.client.stop_stream(cancel_requests=True)
        self.client.close()


@pytest.fixture
def open_stream() -> Iterator[Callable[..., CountStream]]:
    """Opens streams and closes them after the test."""
    opened: list[CountStream] = []

    def make(url: str, count: int, delay: float) -> CountStream:
        opened.append(CountStream(url, count, delay))
        return opened[-1]

    yield make
    for stream in opened:
        stream.close()


@pytest.fixture
def make_server(tmp_path: Path) -> Iterator[Callable[..., TritonServer]]:
    """Servers that are not started yet; whatever runs at the end of the test is killed."""
    made: list[TritonServer] = []

    def make(repository: Path = REPOSITORY, **options) -> TritonServer:
        log = tmp_path / f"server-{len(made)}.log"
        made.append(TritonServer(repository, log_path=log, **options))
        return made[-1]

    yield make
    for server in made:
        server.stop(graceful_seconds=0)


def wait_until(condition: Callable[[], object], seconds: float) -> bool:
    """Poll; True as soon as the condition holds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return bool(condition())


def all_ended(pids: list[int]) -> bool:
    return not any(is_alive(pid) for pid in pids)


def regions(prefix: str) -> list[str]:
    return [path.name for path in SHARED_MEMORY.iterdir() if path.name.startswith(prefix)]

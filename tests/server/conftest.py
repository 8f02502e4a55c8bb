"""Servers for the tests: the real tritonserver and model repository, mostly over a scripted engine.

Every server has ports, folders and a log of its own and is gone when its tests are done.
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from blockdiff.embedded import TritonServer

from .texts import build_tokenizer

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
# Any clover_moe checkpoint with a tokenizer will do: the tests compare answers with each other.
CHECKPOINT = Path(os.environ.get("BLOCKDIFF_TEST_CHECKPOINT", ROOT / "demo" / "checkpoint"))
MAX_CONTEXT = 1024

MakeServer = Callable[..., TritonServer]


@pytest.fixture(scope="session")
def scripted_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint folder without weights: tokenizer, template and limits."""
    folder = tmp_path_factory.mktemp("model")
    build_tokenizer(folder)
    config = json.loads((folder / "config.json").read_text())
    config["max_position_embeddings"] = MAX_CONTEXT
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="session")
def make_repository(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Copies the model repository, by default with the scripted engine in it."""

    def make(max_queue_size: int = 256, is_scripted: bool = True) -> Path:
        target = tmp_path_factory.mktemp("repository") / "models"
        shutil.copytree(ROOT / "model_repository", target)
        if is_scripted:
            for source in (HERE / "fake_block_diffusion" / "model.py", HERE / "fake_engine.py"):
                shutil.copy(source, target / "block_diffusion" / "1")
        set_field(target / "block_diffusion" / "config.pbtxt", "max_queue_size", max_queue_size)
        return target

    return make


def set_field(path: Path, name: str, value: object) -> None:
    """Rewrites every ``name: ...`` of a config.pbtxt."""
    text, count = re.subn(rf"\b{name}: \S+", f"{name}: {value}", path.read_text())
    assert count, f"{path} has no {name}"
    path.write_text(text)


@pytest.fixture(scope="session")
def make_server(
    tmp_path_factory: pytest.TempPathFactory, scripted_model: Path
) -> Callable[..., TritonServer]:
    """Builds a server (not started) on a repository; ``environment`` adds settings."""

    def make(
        repository: Path, slots: int = 2, model: Path | None = None, **options: Any
    ) -> TritonServer:
        work = tmp_path_factory.mktemp("server")
        environment = {
            "BLOCKDIFF_MODEL": str(model or scripted_model),
            "BLOCKDIFF_SLOTS": str(slots),
            "BLOCKDIFF_THREADS": "1",
            "BLOCKDIFF_RELAY_SOCKET": str(work / "relay.sock"),
            "BLOCKDIFF_HEARTBEAT_FILE": str(work / "heartbeat.json"),
            "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
            **options.pop("environment", {}),
        }
        arguments = ["--disable-auto-complete-config", *options.pop("extra_args", ())]
        return TritonServer(
            repository,
            log_path=work / "server.log",
            environment=environment,
            extra_args=arguments,
            **options,
        )

    return make


@pytest.fixture(scope="session")
def narrow(make_server: MakeServer, make_repository: Callable[..., Path]) -> Iterator[TritonServer]:
    """Two slots and a queue of four."""
    with make_server(make_repository(max_queue_size=4), slots=2) as server:
        server.start()
        yield server
        # A graceful end has tests of its own and takes seconds.
        server.stop(graceful_seconds=0)


@pytest.fixture(scope="session")
def wide(make_server: MakeServer, make_repository: Callable[..., Path]) -> Iterator[TritonServer]:
    """Room for every request of a test at once."""
    with make_server(make_repository(max_queue_size=256), slots=64) as server:
        server.start()
        yield server
        # A graceful end has tests of its own and takes seconds.
        server.stop(graceful_seconds=0)


@pytest.fixture(scope="session")
def demo(make_server: MakeServer, make_repository: Callable[..., Path]) -> Iterator[TritonServer]:
    """The repository as it is, with the trained demo checkpoint."""
    repository = make_repository(max_queue_size=64, is_scripted=False)
    with make_server(repository, slots=4, model=CHECKPOINT) as server:
        server.start()
        yield server
        # A graceful end has tests of its own and takes seconds.
        server.stop(graceful_seconds=0)

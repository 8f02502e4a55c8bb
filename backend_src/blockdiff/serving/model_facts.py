"""What ``block_diffusion`` tells ``preprocessing`` of its model, so that a request which cannot be
honoured is refused before it waits.

A file beside the relay's socket. Knows the engine's own check of requests, which needs no torch.
"""

import contextlib
import os
from pathlib import Path

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from blockdiff.core import Request
from blockdiff.engine.config import EngineConfig
from blockdiff.engine.validate import check_request
from blockdiff.model_info import ModelInfo


@dataclass(frozen=True)
class ModelFacts:
    """All that a check of a request looks at besides the request."""

    info: ModelInfo
    config: EngineConfig
    max_context: int
    has_tokenizer: bool = True

    def check(self, request: Request) -> None:
        """Raise what the engine would raise."""
        check_request(request, self.info, self.config, self.max_context, self.has_tokenizer)


_ADAPTER = TypeAdapter(ModelFacts)


def facts_file(relay_socket: Path) -> Path:
    return relay_socket.with_name(relay_socket.name + ".model.json")


def write_facts(path: Path, facts: ModelFacts) -> None:
    """Whole or not at all."""
    part = path.with_name(path.name + ".part")
    part.write_bytes(_ADAPTER.dump_json(facts))
    os.replace(part, path)


def remove_facts(path: Path) -> None:
    path.unlink(missing_ok=True)


class FactsReader:
    """The file's content as it is now; None while there is none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int] | None = None
        self._facts: ModelFacts | None = None

    def read(self) -> ModelFacts | None:
        stamp = None
        with contextlib.suppress(OSError):
            status = self._path.stat()
            stamp = (status.st_mtime_ns, status.st_ino)
        if stamp != self._stamp:
            self._stamp, self._facts = stamp, self._load()
        return self._facts

    def _load(self) -> ModelFacts | None:
        # Whoever cannot be read is not needed: the engine checks every request once more.
        with contextlib.suppress(OSError, ValidationError):
            return _ADAPTER.validate_json(self._path.read_bytes())
        return None

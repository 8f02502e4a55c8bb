"""Tokenizer, settings and the Triton stand-in for tests of the served models."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blockdiff.serving.preprocessor import Preprocessor
from blockdiff.serving.settings import Settings
from blockdiff.serving.spec import RequestSpec, TextContext
from blockdiff.text import Tokenizer
from tests.server.texts import build_tokenizer

from . import fakes

DTYPES = {str: np.object_, bytes: np.object_, bool: np.bool_, int: np.int64, float: np.float32}


@pytest.fixture
def pb_utils() -> Any:
    fakes.Logger.lines = []
    return fakes


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    build_tokenizer(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 256}))
    return folder


@pytest.fixture(scope="session")
def tokenizer(model_dir: Path) -> Tokenizer:
    return Tokenizer.load(model_dir)


@pytest.fixture
def settings(model_dir: Path, tmp_path: Path) -> Settings:
    return Settings(model=model_dir, relay_socket=tmp_path / "relay.sock", max_prompt_bytes=2000)


@pytest.fixture
def build(tokenizer: Tokenizer, settings: Settings) -> Callable[..., Any]:
    """Runs the preprocessor on Python values given as tensors."""
    preprocessor = Preprocessor(tokenizer, settings, 256)

    def run(parameters: dict[str, Any] | None = None, **fields: Any) -> Any:
        return preprocessor.build(as_tensors(fields), parameters or {})

    return run


@pytest.fixture
def ask(tokenizer: Tokenizer) -> Callable[..., fakes.Request]:
    """Makes requests of block_diffusion."""

    def make(prompt: str, timeout: int = 0, key: str = "", **spec: Any) -> fakes.Request:
        text = TextContext(min_tokens=spec.pop("min_tokens", 0))
        wire = RequestSpec(max_tokens=spec.pop("max_tokens", 64), text=text, **spec)
        ids = np.array([tokenizer.encode(prompt)], dtype=np.int32)
        encoded = np.array([[wire.model_dump_json().encode()]], dtype=np.object_)
        tensors = [fakes.Tensor("input_ids", ids), fakes.Tensor("request_spec", encoded)]
        parameters = {"blockdiff_unary_key": key} if key else {}
        return fakes.Request(tensors, parameters, timeout)

    return make


def as_tensors(fields: dict[str, Any]) -> dict[str, np.ndarray]:
    made = {}
    for name, value in fields.items():
        items = value if isinstance(value, list) else [value]
        dtype = DTYPES[type(items[0])] if items else np.object_
        if items and items[0].__class__ is int and items[0] > 2**62:
            dtype = np.uint64
        items = [item.encode() if isinstance(item, str) else item for item in items]
        made[name] = np.array([items], dtype=dtype)
    return made

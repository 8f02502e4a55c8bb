"""Finds the golden fixtures and compares tensors by their tolerances. Holds no tests."""

import functools
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from blockdiff.checkpoint import load_model
from blockdiff.models.trunk import LanguageModel

FIXTURES = Path(__file__).parent / "fixtures"
CASES = sorted(str(p.parent.relative_to(FIXTURES)) for p in FIXTURES.glob("*/*/cases.json"))
HYBRID_CASES = [case for case in CASES if case.startswith(("clover_moe", "qwen3_5_moe"))]
CANVAS_CASES = [case for case in CASES if case.startswith("diffusion_gemma")]
BLOCK_CAUSAL_CASES = [case for case in CASES if case not in HYBRID_CASES + CANVAS_CASES]
STATE_ROLES = ("recurrent_state", "conv_state", "attention_key", "attention_value")


def entries(case: str) -> list[dict[str, Any]]:
    """All entries of a case."""
    found: list[dict[str, Any]] = json.loads((FIXTURES / case / "cases.json").read_text())
    return found


def as_line(entry: dict[str, Any]) -> str:
    """The entry as one line of a requests file."""
    return json.dumps(entry)


@functools.cache
def model(case: str) -> LanguageModel:
    """The case's checkpoint in float32, loaded once per test run."""
    return load_model(FIXTURES / case)


@functools.cache
def expected(case: str) -> dict[str, Tensor]:
    """Tensors computed by the public reference."""
    return load_file(FIXTURES / case / "expected.safetensors")


def expected_roles(case: str, entry: dict[str, Any]) -> dict[str, Tensor]:
    """``role`` or ``role/layer`` -> reference tensor."""
    found = {}
    for role, name in entry["expected"].items():
        names = name if isinstance(name, dict) else {None: name}
        for layer, stored in names.items():
            found[role if layer is None else f"{role}/{layer}"] = expected(case)[stored]
    return found


def assert_within(entry: dict[str, Any], role: str, got: Tensor, want: Tensor) -> None:
    """Compare by the entry's tolerance for this kind of tensor."""
    assert got.shape == want.shape, role
    kind = role.split("/")[0]
    if kind == "conv_state":
        # the oldest column is outside the convolution's reach; see the fixtures' README
        got, want = got[:, 1:], want[:, 1:]
    limits = entry["state_tolerance" if kind in STATE_ROLES else "tolerance"]
    torch.testing.assert_close(got, want, atol=limits["atol"], rtol=limits["rtol"], msg=role)

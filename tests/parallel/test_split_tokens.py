"""Tokens of split models that have no golden fixture, all ranks as threads that run the engine.

Run: pytest tests/parallel/test_split_tokens.py
"""

from pathlib import Path

import pytest

from blockdiff.checkpoint import load_model

from .answers import decode
from .test_split_model import CONFIGS, checkpoint, on_all_ranks

# key heads are copied on four ranks
CASES = [
    ("clover_moe, two sweeps", 4),
    ("qwen3", 4),
    ("qwen3, tied", 2),
    ("qwen3_moe", 2),
    ("qwen3_moe, blocks", 4),
]


@pytest.mark.parametrize(("name", "size"), CASES)
def test_every_rank_decodes_what_one_process_does(name: str, size: int, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, CONFIGS[name], is_fused=False)
    want = decode(load_model(folder))
    assert len({tuple(tokens) for tokens in want}) > 1
    assert (
        on_all_ranks(size, lambda group: decode(load_model(folder, group=group))) == [want] * size
    )

"""Quantised checkpoints on two ranks: the whole model's logits, each rank reading its part.

Run: pytest tests/parallel/test_split_quantised.py
"""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from blockdiff.checkpoint import load_model
from blockdiff.core import Phase
from blockdiff.models.base import RoundBatch, Segment
from blockdiff.models.trunk import LanguageModel
from tests.models.quantized_checkpoints import CONFIGS, FORMATS, write_pair

from .test_split_model import on_all_ranks


def rounds(model: LanguageModel) -> tuple[Tensor, int]:
    """Logits of a prefill and of a preview, and bytes read of the files."""
    caches = model.new_caches(1, 16)
    prefill = Segment(Phase.PREFILL, 0, 0, [3, 4, 5, 6], range(4), 4)
    preview = Segment(Phase.PREVIEW, 0, 4, [31] * 4, range(4))
    batches = (RoundBatch.from_segments([segment]) for segment in (prefill, preview))
    return torch.cat([model.forward(batch, caches) for batch in batches]), model.bytes_read


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("family", CONFIGS)
def test_two_ranks(tmp_path: Path, family: str, name: str) -> None:
    quantised, dense = write_pair(tmp_path, family, FORMATS[name])
    want, size = rounds(load_model(quantised))
    results = on_all_ranks(2, lambda group: rounds(load_model(quantised, group=group)))
    for logits, _ in results:
        torch.testing.assert_close(logits, want, atol=3e-4, rtol=1e-3)
    shares = [count / size for _, count in results]
    dense_size = rounds(load_model(dense))[1]
    others = on_all_ranks(2, lambda group: load_model(dense, group=group).bytes_read)
    # norms, routers and the one key head are read by both, and scales weigh more in them
    assert max(shares) < max(others) / dense_size + 0.05 < 0.62


@pytest.mark.parametrize("dtype", ["int8", "int4", "fp8"])
def test_two_ranks_quantise_as_one(tmp_path: Path, dtype: str) -> None:
    _, dense = write_pair(tmp_path, "clover_moe", FORMATS["int8"])
    want, _ = rounds(load_model(dense, dtype=dtype))
    for logits, _ in on_all_ranks(2, lambda g: rounds(load_model(dense, dtype=dtype, group=g))):
        assert (logits - want).norm() < 0.02 * want.norm()

"""Gated delta layers over flat rows give what padded groups give. Run: pytest tests/models"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from blockdiff.core import Phase
from blockdiff.models.base import RoundBatch
from blockdiff.models.layers.gated_delta import GatedDeltaMixer
from blockdiff.models.layers.trace import Trace
from blockdiff.pages import CachePool
from blockdiff_kernels.implementation import using

from .test_formulations import load, rows

KERNELS = "gated_delta=triton,block_softmax=triton"
LINES = 3  # two slots and a snapshot
PREFILL = [rows(Phase.PREFILL, 0, 0, 7), rows(Phase.PREFILL, 1, 0, 1)]
# two waves of slot 0, of which the first leaves a snapshot, and what previews see of the second
MIXED = [
    rows(Phase.COMMIT, 0, 7, 5),
    rows(Phase.COMMIT, 0, 12, 2),
    rows(Phase.PREVIEW, 0, 14, 5),
    rows(Phase.PREVIEW, 1, 1, 3),
]


def run(folder: Path, letter: str, trace: Trace) -> list[Tensor]:
    """Logits of the second round, and the caches' tensors after it."""
    model = load(folder, letter)
    pool = CachePool(pages=8, page_length=16, snapshots=LINES - 2)
    caches = model.new_caches(2, 40, pool)
    pages = np.array([[0, 1, 2]] * 3 + [[3, 4, 5]])
    first = RoundBatch.from_segments(PREFILL)
    first = replace(first, pages=pages[2:], snapshots=np.array([-1, -1]))
    model.hidden(first, caches)
    second = RoundBatch.from_segments(MIXED)
    second = replace(second, pages=pages, snapshots=np.array([2, -1, -1, -1]))
    hidden = model.hidden(second, caches, trace)
    return [model.head(hidden), caches.states, caches.tails]


@pytest.mark.parametrize("letter", ["A", "B", "C"])
def test_flat_rows_are_mixed_as_padded_ones(
    tmp_path: Path, letter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, flat = Trace(), Trace()
    wanted = run(tmp_path / "padded", letter, plain)
    # what padded groups are mixed by
    monkeypatch.delattr(GatedDeltaMixer, "scan")
    with using(KERNELS):
        found = run(tmp_path / "flat", letter, flat)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4)
    assert found[1][:, 2].abs().sum() > 0
    for role, layers in plain.tensors.items():
        for layer, tensor in layers.items():
            torch.testing.assert_close(flat.tensors[role][layer], tensor, atol=2e-5, rtol=1e-4)

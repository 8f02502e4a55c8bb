"""Models whose large weights are packed for the CPU, against the same ones with plain weights."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from blockdiff.checkpoint import load_model
from blockdiff.checkpoint.sizes import model_parts, model_tensors, tensor_bytes
from blockdiff.core import Phase
from blockdiff.models.base import RoundBatch, Segment
from blockdiff.models.layers.experts import DenseExperts
from blockdiff.models.layers.linear import DenseLinear, concat_rows
from blockdiff.models.layers.packed import PackedExperts, PackedLinear
from blockdiff.models.trunk import LanguageModel
from blockdiff_kernels.implementation import using
from blockdiff_kernels.packed import is_packed

from .checkpoints import TINY, random_tensors, write

# experts and projections of 512 x 512 numbers, the least that float32 packs; a shared expert that
# does not fill its last slice
WIDE: dict[str, Any] = {
    **TINY,
    "vocab_size": 520,
    "mask_token_id": 519,
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 128,
    "num_attention_heads": 4,
    "head_dim": 64,
    "num_experts": 3,
    "moe_intermediate_size": 256,
    "shared_expert_intermediate_size": 300,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tensors = {
        name: t if t.ndim == 1 else t * (3 * t.shape[-1] ** -0.5)
        for name, t in random_tensors(WIDE).items()
    }
    return write(tmp_path_factory.mktemp("wide"), tensors, WIDE)


def play(model: LanguageModel) -> Tensor:
    """Logits of a prefill, and of a commit with a preview after it."""
    caches = model.new_caches(2, 64)
    rounds = (
        [Segment(Phase.PREFILL, 0, 0, range(2, 11), range(9))],
        [
            Segment(Phase.COMMIT, 0, 9, range(20, 28)),
            Segment(Phase.PREVIEW, 0, 17, [519] * 8, range(8)),
        ],
    )
    return torch.cat([model.forward(RoundBatch.from_segments(r), caches) for r in rounds])


@pytest.mark.parametrize("dtype, limit", [("float32", 1e-5), ("bfloat16", 3e-2)])
def test_packed_and_plain_models_agree(folder: Path, dtype: str, limit: float) -> None:
    with using("reference"):
        plain = load_model(folder, dtype=dtype)
        expected = play(plain)
    model = load_model(folder, dtype=dtype)
    assert not any(map(is_packed, model_tensors(plain)))
    parts = [part for part in model_parts(model) if isinstance(part, (PackedExperts, DenseExperts))]
    assert parts and all(isinstance(part, PackedExperts) for part in parts)
    assert is_packed(model.output)
    found = play(model)
    assert (found - expected).norm() <= limit * expected.norm()
    # with what is packed, nothing is kept twice
    sizes = [sum(map(tensor_bytes, model_tensors(own))) for own in (model, plain)]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.05)


def test_an_op_keeps_plain_weights_by_itself(folder: Path) -> None:
    with using("moe=reference,head=reference"):
        model = load_model(folder)
    parts = list(model_parts(model))
    assert any(isinstance(part, DenseExperts) for part in parts)
    assert any(isinstance(part, PackedLinear) for part in parts)
    assert not is_packed(model.output)


def test_the_deterministic_mode_keeps_plain_weights(folder: Path) -> None:
    model = load_model(folder, deterministic=True)
    assert not any(map(is_packed, model_tensors(model)))


def test_tied_heads_stay_plain(tmp_path: Path) -> None:
    config = {**WIDE, "tie_word_embeddings": True, "num_hidden_layers": 1}
    model = load_model(write(tmp_path, random_tensors(config), config))
    assert model.output is model.embed.rows


def test_packed_projections_are_cut_and_joined_as_plain_ones() -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(700, 400), torch.randn(3, 400)
    own = PackedLinear(weight)
    own.pack()
    assert torch.equal(own.weight, weight)
    spans = [(0, 100), (300, 700)]
    wanted = DenseLinear(weight).rows(spans).weight
    assert torch.equal(own.rows(spans).weight, wanted)
    assert torch.equal(own.columns(7, 100).weight, weight[:, 7:100])
    both = concat_rows([own, PackedLinear(weight[:5])])
    assert isinstance(both, PackedLinear)
    wanted = x @ torch.cat((weight, weight[:5])).t()
    torch.testing.assert_close(both(x), wanted, atol=1e-4, rtol=0)
    assert is_packed(both._weight)

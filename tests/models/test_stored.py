"""Reading stored tensors in pieces: any part, dtype and strides; bad numbers are found."""

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from blockdiff.checkpoint import load_model, stored
from blockdiff.checkpoint.finite import is_finite, plainly_finite
from blockdiff.checkpoint.reader import open_checkpoint
from blockdiff.errors import ConfigError

from .checkpoints import TINY, random_tensors, write

PLACES = [
    (),
    (slice(None), slice(1, 3)),
    (slice(2, 3),),
    (slice(2, 3), slice(4, 9)),
    (slice(2, 3), slice(4, 5), slice(1, 6)),
    (slice(1, 4), slice(None), slice(2, 5)),
    (slice(0, 0),),
]
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
SMALL_FLOATS = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu]


def stored_tensor(folder: Path, tensor: Tensor) -> stored.StoredTensor:
    save_file({"first": torch.ones(3), "x": tensor}, str(folder / "model.safetensors"))
    return open_checkpoint(folder).tensors["x"]


@pytest.mark.parametrize("piece_bytes", [1, 200, 8 << 20])
@pytest.mark.parametrize("place", PLACES)
def test_every_part_in_every_piece_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: tuple[slice, ...], piece_bytes: int
) -> None:
    monkeypatch.setattr(stored, "PIECE_BYTES", piece_bytes)
    tensor = torch.randn(5, 9, 7).bfloat16()
    own = stored_tensor(tmp_path, tensor)
    assert torch.equal(own.read(place), tensor[place])
    wanted = tensor[place].float()
    turned = torch.full(wanted.shape[::-1], torch.nan).permute(2, 1, 0)
    own.read_into(turned, place)
    assert torch.equal(turned, wanted)


@pytest.mark.parametrize("dtype", [*FLOATS, *SMALL_FLOATS, torch.int8, torch.uint8, torch.int32])
def test_every_stored_dtype(tmp_path: Path, dtype: torch.dtype) -> None:
    tensor = torch.arange(1, 13).reshape(3, 4).to(torch.float32).to(dtype)
    own = stored_tensor(tmp_path, tensor)
    assert own.read().dtype == dtype
    assert torch.equal(own.read().view(torch.uint8), tensor.view(torch.uint8))
    assert not own.log.not_finite


def test_a_single_number(tmp_path: Path) -> None:
    own = stored_tensor(tmp_path, torch.tensor(2.5))
    assert own.read() == 2.5 and own.read().shape == ()


@pytest.mark.parametrize("dtype", [*FLOATS, *SMALL_FLOATS])
@pytest.mark.parametrize("bad", [None, "nan", "inf", "-inf", "largest"])
def test_finite_agrees_with_its_definition(dtype: torch.dtype, bad: str | None) -> None:
    piece = torch.rand(257).to(dtype)
    if bad == "largest":
        piece = torch.full((257,), torch.finfo(dtype).max, dtype=torch.float64).to(dtype)
    elif bad is not None:
        piece.view(-1)[100] = torch.tensor(float(bad)).to(dtype)
    assert is_finite(piece) == plainly_finite(piece)
    if dtype in FLOATS:
        assert is_finite(piece) == (bad in (None, "largest"))
    if bad == "nan":
        assert not is_finite(piece)


def test_all_tensors_with_bad_numbers_are_named(tmp_path: Path) -> None:
    tensors = random_tensors(TINY)
    for layer in (0, 1, 2):
        tensors[f"layers.{layer}.mlp.experts.3.up_proj.weight"][2, 1] = torch.nan
    tensors["norm.weight"][-1] = -torch.inf
    with pytest.raises(ConfigError) as caught:
        load_model(write(tmp_path, tensors), dtype="bfloat16")
    assert str(caught.value).endswith(
        "cannot be loaded: model.layers.{0-2}.mlp.experts.3.up_proj.weight holds NaN or infinite "
        "values (3 tensors); model.norm.weight holds NaN or infinite values"
    )


def test_a_file_that_changes_meanwhile_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, random_tensors(TINY), shards=2)
    shard = folder / "part-1.safetensors"

    def touch(done: int, total: int) -> None:
        os.utime(shard, ns=(1, 1))

    with pytest.raises(ConfigError, match="part-1.safetensors: changed while it was loaded"):
        load_model(folder, progress=touch)
    files = open_checkpoint(folder)
    shard.unlink()
    with pytest.raises(ConfigError, match="part-1.safetensors: cannot be read"):
        for tensor in files.tensors.values():
            tensor.read()


def test_a_file_that_gets_shorter_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, random_tensors(TINY))
    shard = folder / "model.safetensors"
    with pytest.raises(ConfigError, match="became shorter while it was loaded"):
        load_model(folder, progress=lambda done, total: os.truncate(shard, 100))

"""Reading weights in part gives the parts, and reads no more. Run: pytest tests/models"""

from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from blockdiff.checkpoint.source import DenseSource
from blockdiff.models.layers.experts import DenseExperts, Experts
from blockdiff.models.layers.linear import DenseLinear
from blockdiff.models.source import ExpertNames
from blockdiff.models.split_source import SplitExperts

COUNT, INNER, SHARED, HIDDEN = 3, 8, 12, 6
NAMES = ExpertNames(routed="experts.", count=COUNT, inner=INNER, shared="shared.")


@dataclass
class Memory:
    """A stored tensor that counts the elements it hands out."""

    tensor: Tensor
    read_elements: list[int] = field(default_factory=list)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    def read_into(self, target: Tensor, place: tuple[slice, ...] = ()) -> None:
        found = self.tensor[place]
        assert target.shape == found.shape
        self.read_elements.append(found.numel())
        target.copy_(found)


def stored(is_fused: bool) -> dict[str, Memory]:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    tensors = {"layer.weight": random(10, HIDDEN)}
    gate, up, down = random(COUNT, INNER, HIDDEN), random(COUNT, INNER, HIDDEN), None
    down = random(COUNT, HIDDEN, INNER)
    tensors |= {f"shared.{x}_proj.weight": random(SHARED, HIDDEN) for x in ("gate", "up")}
    tensors["shared.down_proj.weight"] = random(HIDDEN, SHARED)
    if is_fused:
        tensors["experts.gate_up_proj"] = torch.cat((gate, up), dim=1)
        tensors["experts.down_proj"] = down
    else:
        for expert in range(COUNT):
            own = f"experts.{expert}."
            tensors[own + "gate_proj.weight"] = gate[expert]
            tensors[own + "up_proj.weight"] = up[expert]
            tensors[own + "down_proj.weight"] = down[expert]
    return {name: Memory(tensor) for name, tensor in tensors.items()}


def source(tensors: dict[str, Memory]) -> DenseSource:
    return DenseSource(tensors, torch.device("cpu"), torch.float32)


def test_rows_and_columns_read_only_their_part() -> None:
    tensors = stored(False)
    weight = tensors["layer.weight"].tensor
    part = source(tensors).linear("layer", rows=[(6, 8), (0, 1)], columns=(2, 5))
    assert isinstance(part, DenseLinear)
    assert torch.equal(part.weight, weight[[6, 7, 0], 2:5])
    assert tensors["layer.weight"].read_elements == [6, 3]
    rows = source(tensors).tensor("layer.weight", rows=[(1, 3)])
    assert torch.equal(rows, weight[1:3])
    columns = source(tensors).linear("layer", columns=(0, 2))
    assert isinstance(columns, DenseLinear)
    assert torch.equal(columns.weight, weight[:, :2])


def test_float32_names_stay_so() -> None:
    own = DenseSource(
        stored(False),
        torch.device("cpu"),
        torch.bfloat16,
        ("layer.weight",),
    )
    assert own.tensor("layer.weight").dtype == torch.float32
    assert own.tensor("shared.up_proj.weight").dtype == torch.bfloat16


@pytest.mark.parametrize("is_fused", [False, True])
@pytest.mark.parametrize("way", ["chosen", "all"])
def test_parts_of_experts_add_up(is_fused: bool, way: str) -> None:
    """The shared expert is half as wide again as a routed one; a third of it is one slice."""
    tensors = stored(is_fused)
    whole = source(tensors).experts(NAMES)
    assert isinstance(whole, DenseExperts) and whole.count == COUNT + 2
    x = torch.randn(5, HIDDEN, generator=torch.Generator().manual_seed(1))
    weights = torch.rand(5, 2, generator=torch.Generator().manual_seed(2))
    ids = torch.tensor([[0, 1], [2, 1], [0, 2], [1, 0], [2, 0]])

    def run(experts: Experts) -> Tensor:
        """Two routed experts, and the slices of the shared one with weight 0.5."""
        slices = torch.arange(COUNT, experts.count)
        all_ids = torch.cat((ids, slices.expand(5, -1)), dim=1)
        all_weights = functional.pad(weights, (0, len(slices)), value=0.5)
        if way == "chosen":
            return experts(x, all_weights, all_ids)
        return experts.weigh_all(x, torch.zeros(5, experts.count).scatter(1, all_ids, all_weights))

    want = run(whole)
    parts = [source(tensors).experts(NAMES, (rank, COUNT)) for rank in range(COUNT)]
    assert parts[0].gate_up.shape == (1 + 1, 2 * INNER, HIDDEN)
    split = [SplitExperts(own, COUNT, (rank, rank + 1)) for rank, own in enumerate(parts)]
    torch.testing.assert_close(sum(run(part) for part in split), want)
    for name, memory in tensors.items():
        if name != "layer.weight":
            # once for the whole and once for the parts together
            assert sum(memory.read_elements) == 2 * memory.tensor.numel(), name

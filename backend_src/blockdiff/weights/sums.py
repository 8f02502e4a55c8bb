"""What the parts of a checkpoint sum up to. Knows headers and names, reads no tensor."""

from collections.abc import Iterable
from dataclasses import dataclass

from blockdiff.weights.groups import group_of
from blockdiff.weights.headers import TensorHeader
from blockdiff.weights.packed import count_weights


@dataclass(frozen=True)
class Group:
    """Sums over the tensors of one part."""

    name: str
    tensors: int
    parameters: int  # of the model; scales are none
    size: int  # bytes as stored
    dtypes: tuple[str, ...]


def sum_groups(tensors: Iterable[TensorHeader], per_word: int) -> list[Group]:
    """The parts that are there, the largest first; a packed int32 holds ``per_word`` weights."""
    members: dict[str, list[TensorHeader]] = {}
    for tensor in tensors:
        members.setdefault(group_of(tensor.name), []).append(tensor)
    groups = [
        Group(
            name,
            len(own),
            sum(count_weights(tensor, per_word) for tensor in own),
            sum(tensor.size for tensor in own),
            tuple(sorted({tensor.dtype for tensor in own})),
        )
        for name, own in members.items()
    ]
    return sorted(groups, key=lambda group: -group.size)

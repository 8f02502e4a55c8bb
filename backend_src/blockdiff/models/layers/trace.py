"""A notebook for intermediate tensors of one forward, for parity checks. Off in serving."""

from torch import Tensor

from blockdiff.models.group import Group


class Trace:
    """Tensors by role and layer, in the order the model meets them."""

    def __init__(self) -> None:
        self.tensors: dict[str, dict[int, Tensor]] = {}

    def record(self, role: str, layer: int, tensor: Tensor) -> None:
        self.tensors.setdefault(role, {})[layer] = tensor

    def gather(self, role: str, dim: int, group: Group) -> None:
        """Make whole the tensors of ``role``, of whose axis ``dim`` every rank has a part."""
        layers = self.tensors.get(role, {})
        for layer, part in layers.items():
            layers[layer] = group.all_gather(part, dim)

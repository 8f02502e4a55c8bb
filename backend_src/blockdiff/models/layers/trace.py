"""A notebook for intermediate tensors of one forward, for parity checks. Off in serving."""

from torch import Tensor


class Trace:
    """Tensors by role and layer, in the order the model meets them."""

    def __init__(self) -> None:
        self.tensors: dict[str, dict[int, Tensor]] = {}

    def record(self, role: str, layer: int, tensor: Tensor) -> None:
        self.tensors.setdefault(role, {})[layer] = tensor

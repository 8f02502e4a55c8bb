"""Muon for stacks of matrices: momentum, orthogonalised by Newton-Schulz (Jordan et al., 2024).

torch.optim.Muon takes single matrices only; here all matrices of one shape, the stacked experts
included, are orthogonalised in one batched product.
"""

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim import Optimizer


def orthogonalise(g: Tensor, steps: int = 5) -> Tensor:
    """[M, a, b] -> the nearest semi-orthogonal matrices, roughly (singular values 0.7 to 1.2)."""
    a, b, c = 3.4445, -4.7750, 2.0315
    wide = g.shape[1] <= g.shape[2]
    x = (g if wide else g.mT).bfloat16()
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x if wide else x.mT).to(g.dtype)


class Muon(Optimizer):
    """Nesterov momentum, orthogonalised update, decoupled weight decay; matrices [.., a, b]."""

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.01,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            by_shape: dict[tuple[int, int], list[Tensor]] = defaultdict(list)
            for p in group["params"]:
                by_shape[p.shape[-2], p.shape[-1]].append(p)
            for (rows, columns), params in by_shape.items():
                updates = [self.momentum(p, group["momentum"]) for p in params]
                stacked = orthogonalise(torch.cat([u.view(-1, rows, columns) for u in updates]))
                scale = group["lr"] * max(1.0, rows / columns) ** 0.5
                sizes = [p.numel() // (rows * columns) for p in params]
                for p, u in zip(params, stacked.split(sizes), strict=True):
                    p.mul_(1 - group["lr"] * group["weight_decay"])
                    p.add_(u.view_as(p), alpha=-scale)

    def momentum(self, p: Tensor, beta: float) -> Tensor:
        state = self.state[p]
        buffer = state.setdefault("momentum", torch.zeros_like(p))
        assert p.grad is not None
        buffer.lerp_(p.grad, 1 - beta)
        return p.grad.lerp(buffer, beta)

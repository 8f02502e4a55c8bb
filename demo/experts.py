"""Sparse mixture of experts in training form: bounded slots, gathers in both directions.

Knows rows and experts, not sequences.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from demo.streams import DemoConfig


class Experts(nn.Module):
    """All routed experts, fused: gate_up_proj [E, 2I, H], down_proj [E, H, I]."""

    def __init__(self, c: DemoConfig) -> None:
        super().__init__()
        inner, hidden = c.moe_intermediate_size, c.hidden_size
        self.gate_up_proj = nn.Parameter(torch.randn(c.num_experts, 2 * inner, hidden) * 0.05)
        self.down_proj = nn.Parameter(torch.randn(c.num_experts, hidden, inner) * 0.05)


class SharedExpert(nn.Module):
    """The expert that every row takes."""

    def __init__(self, c: DemoConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(c.hidden_size, c.shared_expert_intermediate_size, bias=False)
        self.up_proj = nn.Linear(c.hidden_size, c.shared_expert_intermediate_size, bias=False)
        self.down_proj = nn.Linear(c.shared_expert_intermediate_size, c.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return y


class Dispatch(torch.autograd.Function):
    """Rows -> expert slots; both directions are gathers because a slot has at most one row."""

    @staticmethod
    def forward(ctx, x: Tensor, row_of_slot: Tensor, slot_of_row: Tensor) -> Tensor:
        ctx.save_for_backward(slot_of_row)
        return F.pad(x, (0, 0, 0, 1))[row_of_slot]

    @staticmethod
    def backward(ctx, grad: Tensor):
        (slot_of_row,) = ctx.saved_tensors
        return F.pad(grad, (0, 0, 0, 1))[slot_of_row].sum(1), None, None


class Combine(torch.autograd.Function):
    """Expert slots -> the k results of each row."""

    @staticmethod
    def forward(ctx, y: Tensor, slot_of_row: Tensor, choice_of_slot: Tensor) -> Tensor:
        ctx.save_for_backward(choice_of_slot)
        return F.pad(y, (0, 0, 0, 1))[slot_of_row]

    @staticmethod
    def backward(ctx, grad: Tensor):
        (choice_of_slot,) = ctx.saved_tensors
        return F.pad(grad.flatten(0, 1), (0, 0, 0, 1))[choice_of_slot], None, None


class SparseMoe(nn.Module):
    """Softmax router, top-k renormalised, experts with bounded slots, gated shared expert.

    An expert takes at most `SLACK` times its fair share of the rows of a batch (training only; the
    engine never drops). Padding rows take no slots.
    """

    SLACK = 1.5

    def __init__(self, config: DemoConfig) -> None:
        super().__init__()
        self.c = c = config
        self.gate = nn.Linear(c.hidden_size, c.num_experts, bias=False)
        self.experts = Experts(c)
        self.shared_expert = SharedExpert(c)
        self.shared_expert_gate = nn.Linear(c.hidden_size, 1, bias=False)

    def slots(self, chosen: Tensor, real: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
        """chosen [R, k] -> slot of each choice [R, k], row and choice of each slot [E * C], C."""
        c = self.c
        rows, k = chosen.shape
        capacity = int(rows * k * self.SLACK / c.num_experts)
        one_hot = (chosen[..., None] == torch.arange(c.num_experts)) & (real[:, None, None] > 0)
        rank = one_hot.flatten(0, 1).int().cumsum(0).view(one_hot.shape)
        rank = (rank * one_hot).sum(-1) - 1
        taken = (rank >= 0) & (rank < capacity)
        unused = c.num_experts * capacity
        slot = torch.where(taken, chosen * capacity + rank, unused)
        choice = torch.full((unused + 1,), rows * k).scatter(
            0, slot.flatten(), torch.arange(rows * k)
        )[:unused]
        return slot, choice // k, choice, capacity

    def forward(self, x: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """[N, R, H] -> output and the load-balancing loss (Switch Transformer, eq. 4)."""
        c = self.c
        shape = x.shape
        x, real = x.flatten(0, 1), real.flatten()
        p = F.linear(x.float(), self.gate.weight).float().softmax(-1)
        w, chosen = p.topk(c.num_experts_per_tok, -1)
        w = w / w.sum(-1, keepdim=True)
        with torch.no_grad():
            slot, row_of_slot, choice_of_slot, capacity = self.slots(chosen, real)
            used = (chosen[..., None] == torch.arange(c.num_experts)) & (real[:, None, None] > 0)
            load = used.float().sum((0, 1)) * c.num_experts / (real.sum() * c.num_experts_per_tok)
        balance = (load * (p * real[:, None]).sum(0)).sum() / real.sum()
        # autocast does not reach into autograd functions
        autocast = torch.is_autocast_enabled("cpu")
        dtype = torch.get_autocast_dtype("cpu") if autocast else x.dtype
        slots = Dispatch.apply(x.to(dtype), row_of_slot, slot)
        slots = slots.view(c.num_experts, capacity, -1)
        gate, up = (slots @ self.experts.gate_up_proj.transpose(1, 2)).chunk(2, -1)
        slots = (F.silu(gate) * up) @ self.experts.down_proj.transpose(1, 2)
        routed = Combine.apply(slots.flatten(0, 1), slot, choice_of_slot)
        routed = (routed * w[..., None].to(routed.dtype)).sum(1)
        shared = self.shared_expert(x)
        return (routed + shared * torch.sigmoid(self.shared_expert_gate(x))).view(shape), balance

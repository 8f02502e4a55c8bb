"""Routing and experts of the published models, in the number formats that they are served in."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from blockdiff_kernels.coreset import RowBlocks
from blockdiff_kernels.moe import triton
from blockdiff_kernels.moe.plan import ExpertGroups, RouterPlan, Routing, RowNorm
from blockdiff_kernels.moe.rules import MassPool, MaximumPool, Rule, Sigmoid, Softmax
from blockdiff_kernels.moe.stacks import ExpertWeights, WeightStack, dense_weights
from blockdiff_kernels.moe.tiles import product_rows
from blockdiff_kernels.norm.kinds import NormKind
from blockdiff_kernels.projection.sources import Normed
from tests.aot.case import Case

WGMMA = ("gate_up_kernel", "down_kernel")


def tensor(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def bias(experts: int) -> Tensor:
    return tensor(experts, dtype=torch.float32)


@dataclass(frozen=True)
class Model:
    hidden: int
    inner: int
    experts: int
    shared: int
    rule: Rule
    norm: NormKind
    is_gated: bool = False
    router_dtype: torch.dtype = torch.bfloat16
    activation: str = "silu"


CLOVER = Model(2048, 512, 256, 1, Softmax(8), NormKind.ZERO_CENTRED, is_gated=True)
CLOVER_POOLS = Model(
    2048, 512, 256, 1, Softmax(8, pool=MassPool(0.6)), NormKind.ZERO_CENTRED, is_gated=True
)
LLADA2 = Sigmoid(8, bias(256), 2.5, groups=8, kept_groups=4)
MINI = Model(2048, 512, 256, 1, LLADA2, NormKind.SCALED, router_dtype=torch.float32)
FLASH = Model(4096, 1024, 256, 1, LLADA2, NormKind.SCALED)
LLADA22 = Model(
    2048, 512, 256, 1, Sigmoid(8, bias(256), 2.5, pool=MaximumPool(48)), NormKind.SCALED
)
SDAR = Model(2048, 768, 128, 0, Softmax(8), NormKind.SCALED)
GEMMA = Model(
    2816,
    704,
    128,
    0,
    Softmax(8, expert_scale=tensor(128)),
    NormKind.PLAIN,
    activation="gelu_tanh",
)


def stack(own: Model, format_name: str) -> ExpertWeights:
    count = own.experts + own.shared
    if format_name == "bf16":
        gate_up = tensor(count, 2 * own.inner, own.hidden)
        return dense_weights(gate_up, tensor(count, own.inner, own.hidden), own.activation)
    bits, _, group = format_name.partition("/")
    types = {"int8": torch.int8, "fp8": torch.float8_e4m3fn, "int4": torch.uint8}

    def one(outputs: int, width: int) -> WeightStack:
        values = tensor(count, outputs, width // 2 if bits == "int4" else width, dtype=types[bits])
        groups = width // int(group) if group else 1
        return WeightStack(values, tensor(count, outputs, groups, dtype=torch.float32))

    return ExpertWeights(one(2 * own.inner, own.hidden), one(own.hidden, own.inner), own.activation)


def plan_of(own: Model) -> RouterPlan:
    router = tensor(own.experts + own.is_gated, own.hidden, dtype=own.router_dtype)
    norm = RowNorm(tensor(own.hidden), 1e-6, NormKind.PLAIN) if own is GEMMA else None
    return RouterPlan(router, own.rule, norm, 1.0, own.experts, own.shared)


def choose(own: Model, rows: int) -> None:
    count = tensor(1, dtype=torch.int32)
    hits = tensor(own.experts, dtype=torch.int64)
    blocks = RowBlocks(tensor(rows, dtype=torch.int64), rows // 32)
    x = tensor(rows, own.hidden)
    source = Normed(x, tensor(own.hidden), 1e-6, own.norm)
    triton.choose_experts(source, plan_of(own), blocks, count, hits)


def apply(own: Model, rows: int, format_name: str) -> None:
    """Of a routing that only says how large everything is."""
    plan = plan_of(own)
    tile_rows = product_rows(rows, own.rule.top_k, own.experts)
    x, entries = tensor(rows, own.hidden), rows * plan.chosen
    groups = ExpertGroups(
        rows=tensor(entries, dtype=torch.int32),
        inverse=tensor(rows, plan.chosen, dtype=torch.int32),
        tiles=tensor(3, entries, dtype=torch.int32),
        offsets=tensor(plan.stacked + 1, dtype=torch.int32),
        distinct=tensor(1, dtype=torch.int32),
        tile_rows=tile_rows,
    )
    weights = tensor(rows, plan.chosen, dtype=torch.float32)
    routing = Routing(x, weights, groups.inverse, groups)
    triton.apply_experts(routing, stack(own, format_name), x)


def route_case(name: str, own: Model, rows: int) -> Case:
    return Case(f"moe/{name}/route/T={rows}", partial(choose, own, rows))


def case(name: str, own: Model, rows: int, format_name: str = "bf16") -> Case:
    call = partial(apply, own, rows, format_name)
    return Case(f"moe/{name}/{format_name}/T={rows}", call, WGMMA)


CASES = [
    *(route_case("35b", CLOVER, rows) for rows in (32, 2048)),
    route_case("35b-pools", CLOVER_POOLS, 128),
    route_case("llada2-mini", MINI, 128),
    route_case("llada2.2-mini", LLADA22, 128),
    route_case("llada2-flash", FLASH, 512),
    route_case("diffusion-gemma", GEMMA, 256),
    *(case("35b", CLOVER, rows) for rows in (32, 512, 2048)),
    *(case("35b", CLOVER, 128, name) for name in ("fp8", "fp8/128", "int8", "int4/128")),
    case("35b", CLOVER, 2048, "int4/128"),
    *(case("llada2-mini", MINI, 32, name) for name in ("bf16", "fp8")),
    *(case("llada2-flash", FLASH, rows) for rows in (32, 512)),
    *(case("sdar-30b", SDAR, rows) for rows in (128, 512, 2048)),
    case("diffusion-gemma", GEMMA, 256, "int4/64"),
]

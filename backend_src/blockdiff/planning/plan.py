"""Adds up what a device has to hold and finds how many slots and how much context fit.

Follows the engine as it is: every slot's caches are allocated in full before serving. Knows nothing
of files or of how a plan is shown.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from blockdiff.errors import ConfigError
from blockdiff.planning import activations, needs
from blockdiff.planning.model import PlannedModel
from blockdiff.planning.shape import ModelShape
from blockdiff.planning.split import share, split_problem

DTYPES = ("bf16", "int8", "int4", "fp8", "fp32")
MOST_SLOTS = 4096
SMALLER_DTYPES = {"fp32": ("bf16",), "bf16": ("int8", "int4"), "int8": ("int4",), "fp8": ("int4",)}


@dataclass(frozen=True)
class Setup:
    """The device and the load that are planned for."""

    device_memory: int  # bytes of one device
    dtype: str = "bf16"
    tensor_parallel: int = 1
    slots: int = 8
    context: int = 4096
    block_length: int = 32
    headroom: float = 0.25
    device: str = "cuda"
    prefill_rows: int = 512

    @property
    def usable(self) -> int:
        """What may be filled: the rest is headroom."""
        return int(self.device_memory * (1 - self.headroom))


@dataclass(frozen=True)
class Demand:
    """Bytes on each device."""

    weights: int
    overhead: int
    activations: int
    sampling: int
    kv_cache: int
    recurrent_state: int
    kept_states: int

    @property
    def caches(self) -> int:
        """What is allocated for requests before the first one comes."""
        return self.kv_cache + self.recurrent_state + self.kept_states

    @property
    def total(self) -> int:
        """What is taken at the worst moment: a round's activations are freed before it samples."""
        return self.weights + self.overhead + self.caches + max(self.activations, self.sampling)


@dataclass(frozen=True)
class Plan:
    """The answer: what is needed, whether it fits, and what would."""

    model: PlannedModel
    setup: Setup
    demand: Demand
    kv_bytes_per_token: int
    state_bytes_per_request: int
    fitting_slots: int  # at the context asked for; 0: not even one
    fitting_context: int  # with the slots asked for; 0: not even a block
    changes: tuple[str, ...]  # flags that make it fit, each by itself; empty when it fits

    @property
    def fits(self) -> bool:
        return self.demand.total <= self.setup.usable

    def as_json(self) -> dict[str, Any]:
        return {
            "model_type": self.model.shape.family,
            "parameters": self.model.parameters,
            "active_parameters": self.model.active_parameters,
            "parts": needs.weight_parts(self.model, self.setup.dtype),
            "counted_in": "safetensors headers" if self.model.has_headers else "config",
            "setup": asdict(self.setup),
            # activations and sampling take turns: the larger one is in the total
            "bytes_per_device": {**asdict(self.demand), "total": self.demand.total},
            "usable_bytes_per_device": self.setup.usable,
            "weight_bytes_all_devices": sum(
                needs.weight_parts(self.model, self.setup.dtype).values()
            ),
            "kv_bytes_per_token_per_device": self.kv_bytes_per_token,
            "state_bytes_per_request_per_device": self.state_bytes_per_request,
            "fits": self.fits,
            "fitting_slots": self.fitting_slots,
            "fitting_context": self.fitting_context,
            "changes": list(self.changes),
        }


def make_plan(model: PlannedModel, setup: Setup) -> Plan:
    """Plan ``model`` on ``setup``; a setup that makes no sense is a ConfigError."""
    _check(model.shape, setup)
    demand = _demand(model, setup)
    is_fitting = demand.total <= setup.usable
    shape = share(model.shape, setup.tensor_parallel)
    return Plan(
        model=model,
        setup=setup,
        demand=demand,
        kv_bytes_per_token=needs.kv_bytes_per_token(shape, setup.dtype),
        state_bytes_per_request=needs.state_bytes(shape, setup.dtype),
        fitting_slots=_fitting_slots(model, setup),
        fitting_context=_fitting_context(model, setup),
        changes=() if is_fitting else tuple(_changes(model, setup)),
    )


def _check(shape: ModelShape, setup: Setup) -> None:
    if setup.dtype not in DTYPES:
        raise ConfigError(f"dtype: {setup.dtype!r} must be one of {', '.join(DTYPES)}")
    if not 1 <= setup.slots <= MOST_SLOTS:
        raise ConfigError(f"max-batch-size: {setup.slots} must be from 1 to {MOST_SLOTS}")
    most = shape.max_context
    if not 1 <= setup.context <= most:
        raise ConfigError(f"max-context: {setup.context} must be from 1 to {most}, the model's")
    if not 1 <= setup.block_length <= setup.context:
        raise ConfigError(
            f"block-length: {setup.block_length} must be from 1 to max-context {setup.context}"
        )
    if shape.has_fixed_block and setup.block_length != shape.block_length:
        raise ConfigError(
            f"block-length: {setup.block_length} must be {shape.block_length}, the model's canvas"
        )
    if not 0 <= setup.headroom <= 0.9:
        raise ConfigError(f"headroom: {setup.headroom} must be from 0 to 0.9")
    problem = split_problem(shape, setup.tensor_parallel)
    if problem is not None:
        raise ConfigError(f"tensor-parallel: {setup.tensor_parallel} is not possible, {problem}")


def _demand(model: PlannedModel, setup: Setup) -> Demand:
    dtype, ways = setup.dtype, setup.tensor_parallel
    shape = share(model.shape, ways)
    load = activations.Load(setup.slots, setup.context, setup.block_length, setup.prefill_rows)
    return Demand(
        weights=needs.weight_bytes(model, dtype, ways),
        overhead=needs.overhead_bytes(setup.device, ways),
        activations=activations.activation_bytes(shape, dtype, load),
        sampling=activations.sampling_bytes(shape, dtype, load),
        kv_cache=setup.slots * needs.kv_bytes(shape, dtype, setup.context)
        + needs.empty_page_bytes(shape, dtype),
        recurrent_state=setup.slots * needs.state_bytes(shape, dtype),
        kept_states=setup.slots * needs.kept_state_bytes(shape, dtype, setup.context),
    )


def _fits(model: PlannedModel, setup: Setup) -> bool:
    return _demand(model, setup).total <= setup.usable


def _fitting_slots(model: PlannedModel, setup: Setup) -> int:
    return _largest(MOST_SLOTS, lambda slots: _fits(model, replace(setup, slots=slots)))


def _fitting_context(model: PlannedModel, setup: Setup) -> int:
    most = model.shape.max_context
    found = _largest(most, lambda context: _fits(model, replace(setup, context=context)))
    return found if found >= setup.block_length else 0


def _largest(most: int, fits: Callable[[int], bool]) -> int:
    """The largest number from 1 to ``most`` that fits (0: none), if smaller ones fit too."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _changes(model: PlannedModel, setup: Setup) -> list[str]:
    """Changes of one flag that make the setup fit, the cheapest first."""
    changes = []
    slots, context = _fitting_slots(model, setup), _fitting_context(model, setup)
    if slots:
        changes.append(f"--max-batch-size {slots}")
    if context:
        changes.append(f"--max-context {context}")
    # what is stored quantised is not quantised again
    smaller = SMALLER_DTYPES.get(setup.dtype, ()) if model.stored_kind is None else ()
    for dtype in smaller:
        if _fits(model, replace(setup, dtype=dtype)):
            changes.append(f"--dtype {dtype}")
            break
    more = [
        replace(setup, tensor_parallel=ways)
        for ways in (2, 4, 8, 16)
        # processes on CPUs share one memory
        if setup.device != "cpu"
        and ways > setup.tensor_parallel
        and split_problem(model.shape, ways) is None
    ]
    enough = next((larger for larger in more if _fits(model, larger)), None)
    if enough is not None:
        changes.append(f"--tensor-parallel {enough.tensor_parallel}")
    return changes

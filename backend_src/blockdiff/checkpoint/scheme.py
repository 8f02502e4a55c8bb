"""How projections are quantised, and which ones. Knows nothing of files.

Quantised: projections of attention and of Gated DeltaNet, dense and shared MLPs, routed experts.
In high precision: embeddings, output head, routers, gates, convolutions, norms, all vectors, and
the two small Gated DeltaNet projections ``in_proj_a`` and ``in_proj_b``.
"""

import re
from dataclasses import dataclass

from torch import Tensor

from blockdiff.config.quantization import GROUP_SIZES
from blockdiff.errors import ConfigError
from blockdiff.models.expert_layout import PARTS
from blockdiff_kernels.quantized_linear import pack_int4
from blockdiff_kernels.quantized_linear.quantize import quantize_fp8, quantize_int

KINDS = ("int8", "int4", "fp8")
# int8 weights whose activations become int8 as well; to load, not to store
W8A8 = "w8a8"
# high precision, as safetensors writes it
STORED_DTYPES = ("F32", "BF16", "F16")
# modules that a rule by shape would take; as lists of exceptions in public formats have them
HIGH_PRECISION = (
    r"re:.*lm_head$",
    r"re:.*(embed_tokens|word_embeddings)$",
    r"re:.*mlp\.gate$",
    r"re:.*router.*",
    r"re:.*shared_expert_gate$",
    r"re:.*self_conditioning\.",
    r"re:.*in_proj_[ab]$",
)
STACKS = tuple(f"experts.{part}" for part in ("gate_up_proj", *PARTS))
_HIGH_PRECISION = re.compile("|".join(f"(?:{name[3:]})" for name in HIGH_PRECISION))
_QUANTISED = re.compile(
    r"layers\.\d+\..*(_proj|_proj_qkv|_proj_qkvz|_proj_z|query_key_value|dense)$"
)


def is_quantisable(module: str, shape: tuple[int, ...]) -> bool:
    """Whether the weight of this canonical name and shape is a projection to quantise.

    Stacks of experts [E, out, in] are.
    """
    if len(shape) == 3:
        return module.endswith(STACKS)
    is_projection = len(shape) == 2 and _QUANTISED.search(module) is not None
    return is_projection and _HIGH_PRECISION.match(module) is None


@dataclass(frozen=True)
class Scheme:
    """One of KINDS; ``group`` inputs share a scale of int4, None: as many as fit each module."""

    kind: str
    group: int | None = None

    def quantise(self, module: str, weight: Tensor, unit: int) -> tuple[Tensor, Tensor]:
        """Values and scale of a weight [out, in], ``unit`` inputs to a scale.

        ConfigError for a weight that holds what is not a number.
        """
        if not bool(weight.isfinite().all()):
            raise ConfigError(f"{module}.weight holds NaN or infinity; it cannot be quantised")
        if self.kind == "fp8":
            return quantize_fp8(weight)
        if self.kind == "int8":
            return quantize_int(weight, 8)
        values, scale = quantize_int(weight, 4, unit)
        return pack_int4(values), scale

    def unit(self, module: str, columns: int) -> int:
        """How many inputs of a module with ``columns`` of them share a scale."""
        return self.group_for(module, columns) if self.kind == "int4" else columns

    def group_for(self, module: str, columns: int) -> int:
        """How many columns of a module share a scale."""
        sizes = sorted(GROUP_SIZES, reverse=True) if self.group is None else [self.group]
        found = next((size for size in sizes if columns % size == 0), None)
        if found is None:
            fitting = [size for size in GROUP_SIZES if columns % size == 0]
            advice = f"use {' or '.join(map(str, fitting))}" if fitting else "use int8 or fp8"
            raise ConfigError(
                f"{module}.weight has {columns} columns, which group size {sizes[-1]} does not "
                f"divide; {advice}"
            )
        return found

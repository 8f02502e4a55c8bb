"""How a checkpoint's projections are quantised: ``quantization_config`` of ``config.json``.

Knows the public formats' keys; knows nothing of tensors. Whatever is not supported is refused.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from blockdiff.config.keys import Keys
from blockdiff.errors import ConfigError

KEY = "quantization_config"
METHODS = ("compressed-tensors", "gptq", "fp8")
GROUP_SIZES = (32, 64, 128)
# what may stand before a module's canonical name in lists of modules
_PREFIXES = ("", "model.", "model.language_model.", "language_model.model.")
_FORMATS = {
    "pack-quantized": (("int", 4), ("int", 8)),
    "int-quantized": (("int", 8),),
    "float-quantized": (("float", 8),),
    "naive-quantized": (("int", 8), ("float", 8)),
}


@dataclass(frozen=True)
class Quantization:
    """One storage of quantised projections, and which modules have it."""

    method: str  # one of METHODS
    kind: str  # int4, int8 or fp8
    is_packed: bool = False  # integers in int32, along the inputs
    group: int | None = None  # inputs that share a scale; None: all of an output's
    block: tuple[int, int] | None = None  # outputs and inputs that share a scale
    gptq_zero: int = 7  # what GPTQ stores as the zero point of a symmetric weight
    targets: tuple[str, ...] = ("Linear",)
    ignored: tuple[str, ...] = ()

    def covers(self, module: str) -> bool:
        """Whether the projection of this canonical name should be quantised."""
        return _matches(module, self.targets) and not self.ignores(module)

    def ignores(self, module: str) -> bool:
        """Whether the list of exceptions has the module."""
        return _matches(module, self.ignored)


def parse_quantization(config: Mapping[str, Any]) -> Quantization | None:
    """The checked ``quantization_config`` of a config mapping; None where there is none."""
    text = config.get("text_config")
    nested = text.get(KEY) if isinstance(text, Mapping) else None
    found = config.get(KEY) if config.get(KEY) is not None else nested
    if found is None:
        return None
    if not isinstance(found, Mapping):
        raise ConfigError(f"config.json: {KEY} is {found!r}; it must be an object or absent")
    keys = Keys(found, f"{KEY}.")
    method = keys.get("quant_method")
    if method == "compressed-tensors":
        return _compressed_tensors(keys)
    if method == "gptq":
        return _gptq(keys)
    if method == "fp8":
        return _block_fp8(keys)
    raise keys.error("quant_method", f"one of {list(METHODS)}")


def _compressed_tensors(keys: Keys) -> Quantization:
    layout = keys.choice("format", tuple(_FORMATS), "")
    for key in ("kv_cache_scheme", "sparsity_config", "transform_config"):
        if keys.get(key) not in (None, {}) and not _is_dense(keys.get(key)):
            raise keys.error(key, "absent or empty")
    if keys.get("quantization_status") not in ("compressed", None):
        raise keys.error("quantization_status", "compressed")
    groups = keys.get("config_groups")
    if not isinstance(groups, Mapping) or len(groups) != 1:
        raise keys.error("config_groups", "an object with exactly one group")
    name, group = next(iter(groups.items()))
    place = f"{KEY}.config_groups.{name}."
    own = Keys(group if isinstance(group, Mapping) else {}, place)
    inputs = own.get("input_activations")
    if inputs is not None and not (isinstance(inputs, Mapping) and inputs.get("dynamic") is True):
        raise own.error("input_activations", "absent or dynamic")
    if own.get("output_activations") is not None:
        raise own.error("output_activations", "absent")
    if own.get("format") not in (None, layout):
        raise own.error("format", f"absent or {layout}")
    if not isinstance(own.get("weights"), Mapping):
        raise own.error("weights", "an object")
    return _compressed_weights(keys, own, layout, Keys(own.get("weights"), place + "weights."))


def _compressed_weights(keys: Keys, group: Keys, layout: str, weights: Keys) -> Quantization:
    number = weights.choice("type", ("int", "float"), "int")
    bits = weights.integer("num_bits", default=8)
    if (number, bits) not in _FORMATS[layout]:
        allowed = sorted({bits for kind, bits in _FORMATS[layout] if kind == number})
        raise weights.error("num_bits", f"one of {allowed} for type {number} in format {layout}")
    if not weights.boolean("symmetric", True):
        raise weights.error("symmetric", "true")
    if weights.get("actorder") not in (None, False, "weight", "static"):
        raise weights.error("actorder", "absent or static")
    if weights.get("dynamic") not in (None, False):
        raise weights.error("dynamic", "false")
    strategy = weights.choice("strategy", ("tensor", "channel", "group", "block"), "tensor")
    if strategy == "block" and number == "int":
        raise weights.error("strategy", "tensor, channel or group for type int")
    return Quantization(
        method="compressed-tensors",
        kind="fp8" if number == "float" else f"int{bits}",
        is_packed=layout == "pack-quantized",
        group=_group_size(weights) if strategy == "group" else None,
        block=_block(weights, "block_structure") if strategy == "block" else None,
        targets=_names(group, "targets") or ("Linear",),
        ignored=_names(keys, "ignore"),
    )


def _gptq(keys: Keys) -> Quantization:
    if keys.integer("bits") != 4:
        raise keys.error("bits", "4")
    if keys.get("desc_act") not in (False, None):
        raise keys.error("desc_act", "false; quantise without activation order")
    if not keys.boolean("sym", True):
        raise keys.error("sym", "true")
    if keys.get("dynamic") not in (None, {}):
        raise keys.error("dynamic", "absent or empty")
    layout = keys.choice("checkpoint_format", ("gptq", "gptq_v2"), "gptq")
    return Quantization(
        method="gptq",
        kind="int4",
        is_packed=True,
        group=None if keys.get("group_size") == -1 else _group_size(keys),
        gptq_zero=8 if layout == "gptq_v2" else 7,
    )


def _block_fp8(keys: Keys) -> Quantization:
    if keys.get("activation_scheme") not in ("dynamic", None):
        raise keys.error("activation_scheme", "dynamic")
    if keys.get("fmt") not in ("e4m3", None):
        raise keys.error("fmt", "e4m3")
    return Quantization(
        method="fp8",
        kind="fp8",
        block=_block(keys, "weight_block_size"),
        ignored=_names(keys, "modules_to_not_convert") + _names(keys, "ignored_layers"),
    )


def _group_size(keys: Keys) -> int:
    size = keys.get("group_size")
    if type(size) is not int or size not in GROUP_SIZES:
        raise keys.error("group_size", f"one of {list(GROUP_SIZES)}")
    return size


def _block(keys: Keys, key: str) -> tuple[int, int]:
    found = keys.get(key)
    is_pair = isinstance(found, list) and len(found) == 2
    if not is_pair or any(type(n) is not int or not 1 <= n <= 65536 for n in found):
        raise keys.error(key, "two integers from 1 to 65536")
    return found[0], found[1]


def _names(keys: Keys, key: str) -> tuple[str, ...]:
    found = keys.get(key) or []
    if not isinstance(found, list) or any(not isinstance(name, str) for name in found):
        raise keys.error(key, "a list of module names")
    for name in found:
        try:
            re.compile(name[3:] if name.startswith("re:") else "")
        except re.error:
            raise keys.error(key, f"a list of module names; {name!r} is no expression") from None
    return tuple(found)


def _is_dense(value: Any) -> bool:
    return isinstance(value, Mapping) and value.get("format") == "dense"


def _matches(module: str, names: tuple[str, ...]) -> bool:
    full = [prefix + module for prefix in _PREFIXES]
    return any(_is_match(candidate, name) for name in names for candidate in full)


def _is_match(module: str, name: str) -> bool:
    if name.startswith("re:"):
        return re.match(name[3:], module) is not None
    return name == "Linear" or module == name or module.startswith(name + ".")

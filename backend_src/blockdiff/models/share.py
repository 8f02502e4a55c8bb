"""Which part of a model one rank computes: its heads, inner channels, experts, vocabulary rows.

Knows configurations; knows nothing of tensors, names or processes.
"""

from dataclasses import dataclass, replace
from typing import TypeVar

from blockdiff.config import (
    AnyConfig,
    AttentionConfig,
    AttentionShape,
    DiffusionGemmaConfig,
    HybridConfig,
)
from blockdiff.errors import ConfigError
from blockdiff.models.group import ALONE, Group

Config = TypeVar("Config", HybridConfig, AttentionConfig)
# start, stop
Span = tuple[int, int]


@dataclass(frozen=True)
class Share:
    """One rank's part of the model that ``whole`` describes; alone, it is all of it."""

    whole: AnyConfig
    group: Group = ALONE

    def equal(self, count: int, unit: int = 1) -> Span:
        """This rank's of the equal parts of ``count`` things, in units of ``unit`` rows each."""
        each = count // self.group.size
        return self.group.rank * each * unit, (self.group.rank + 1) * each * unit

    def heads(self, count: int, unit: int = 1) -> Span:
        """As ``equal``, but where there are more ranks than heads, several ranks have the same."""
        if count >= self.group.size:
            return self.equal(count, unit)
        head = self.group.rank * count // self.group.size
        return head * unit, (head + 1) * unit

    def copies(self, count: int) -> int:
        """How many ranks have each of ``count`` key heads."""
        return max(self.group.size // count, 1)

    def local(self) -> AnyConfig:
        """The configuration with this rank's numbers of heads; all else is the whole model's.

        ConfigError when the model does not divide into so many parts.
        """
        if self.group.size == 1:
            return self.whole
        check_divisible(self.whole, self.group.size)
        if isinstance(self.whole, HybridConfig):
            return replace(
                self._attention(self.whole),
                linear_num_key_heads=self._count(self.whole.linear_num_key_heads),
                linear_num_value_heads=self._count(self.whole.linear_num_value_heads),
            )
        if isinstance(self.whole, AttentionConfig):
            return self._attention(self.whole)
        return replace(
            self.whole,
            num_attention_heads=self._count(self.whole.num_attention_heads),
            sliding=self._shape(self.whole.sliding),
            full=self._shape(self.whole.full),
        )

    def _shape(self, shape: AttentionShape) -> AttentionShape:
        return replace(shape, kv_heads=self._count(shape.kv_heads))

    def _attention(self, config: Config) -> Config:
        return replace(
            config,
            num_attention_heads=self._count(config.num_attention_heads),
            num_key_value_heads=self._count(config.num_key_value_heads),
        )

    def _count(self, heads: int) -> int:
        return max(heads // self.group.size, 1)


def check_divisible(config: AnyConfig, size: int) -> None:
    """Raise ConfigError, naming key and value, unless ``size`` ranks can share the model."""
    if isinstance(config, HybridConfig):
        parts, heads = _hybrid(config)
    elif isinstance(config, AttentionConfig):
        parts, heads = _attention_only(config)
    else:
        parts, heads = _diffusion_gemma(config)
    for key, value in parts.items():
        if value % size:
            raise _indivisible(key, value, size, f"a multiple of {size}")
    for key, value in heads.items():
        if value % size and size % value:
            raise _indivisible(key, value, size, f"a multiple or a divisor of {size}")


def _hybrid(config: HybridConfig) -> tuple[dict[str, int], dict[str, int]]:
    """What must divide, and heads that several ranks may have a copy of."""
    return {
        "num_attention_heads": config.num_attention_heads,
        "linear_num_value_heads": config.linear_num_value_heads,
        "num_experts": config.num_experts,
        "shared_expert_intermediate_size": config.shared_expert_intermediate_size,
        "vocab_size": config.vocab_size,
    }, {
        "num_key_value_heads": config.num_key_value_heads,
        "linear_num_key_heads": config.linear_num_key_heads,
    }


def _attention_only(config: AttentionConfig) -> tuple[dict[str, int], dict[str, int]]:
    """As ``_hybrid``; sizes of parts that a model does not have are 0, which divides."""
    router = config.router
    return {
        "num_attention_heads": config.num_attention_heads,
        "intermediate_size": config.intermediate_size,
        "num_experts": router.num_experts if router else 0,
        "shared_intermediate_size": router.shared_intermediate_size if router else 0,
        "vocab_size": config.vocab_size,
    }, {"num_key_value_heads": config.num_key_value_heads}


def _diffusion_gemma(config: DiffusionGemmaConfig) -> tuple[dict[str, int], dict[str, int]]:
    """As ``_hybrid``."""
    return {
        "num_attention_heads": config.num_attention_heads,
        "intermediate_size": config.intermediate_size,
        "num_experts": config.num_experts,
        "vocab_size": config.vocab_size,
    }, {
        "num_key_value_heads": config.sliding.kv_heads,
        "num_global_key_value_heads": config.full.kv_heads,
    }


def _indivisible(key: str, value: int, size: int, allowed: str) -> ConfigError:
    return ConfigError(
        f"config.json: {key} is {value}; for tensor_parallel {size} it must be {allowed}"
    )

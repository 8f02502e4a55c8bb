"""Per-slot memory of a model: keys and values, recurrent states, convolution tails.

Everything is allocated once. Knows nothing of rounds, requests or of who holds which slot.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from blockdiff.config import FULL, LINEAR, HybridConfig


class LayerCaches(ABC):
    """Keys and values by attention layer; written only by commits and ``reset``.

    lengths        [slots] int64, committed tokens
    """

    layer_keys: tuple[Tensor, ...]
    """Per attention layer [slots, Hkv, places, D], in model dtype."""
    layer_values: tuple[Tensor, ...]

    def __init__(self, num_slots: int, max_context: int, device: torch.device) -> None:
        self.num_slots = num_slots
        self.max_context = max_context
        self.lengths = torch.zeros(num_slots, dtype=torch.int64, device=device)

    @abstractmethod
    def reset(self, slots: Tensor) -> None:
        """Forget ``slots`` [N] int64."""

    def committed(self, index: int, slot: int, length: int) -> tuple[Tensor, Tensor]:
        """Copies [Hkv, kept, D] of attention layer ``index``'s keys and values in ``slot``.

        They are those of the last of the ``length`` positions committed, oldest first: all that
        the layer keeps.
        """
        places = self.layer_keys[index].shape[2]
        kept = torch.arange(max(length - places, 0), length, device=self.lengths.device) % places
        keys, values = self.layer_keys[index][slot], self.layer_values[index][slot]
        return keys.index_select(1, kept), values.index_select(1, kept)


class KeyValueCaches(LayerCaches):
    """Preallocated caches for ``num_slots`` requests, of one shape for all layers.

    keys, values   [attention layers, slots, Hkv, max_context, D]    model dtype
    """

    def __init__(
        self,
        shape: tuple[int, int, int, int, int],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        _, num_slots, _, max_context, _ = shape
        super().__init__(num_slots, max_context, device)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        # one view per layer, so that a layer does not index its stack in every round
        self.layer_keys, self.layer_values = self.keys.unbind(), self.values.unbind()

    def reset(self, slots: Tensor) -> None:
        """Forget ``slots`` [N] int64: zero lengths and the rows ever committed."""
        if slots.numel() == 0:
            return
        # stale rows are masked, but a masked nan would still poison a product with zero
        used = int(self.lengths.index_select(0, slots).max())
        self.keys[:, :, :, :used].index_fill_(1, slots, 0)
        self.values[:, :, :, :used].index_fill_(1, slots, 0)
        self.lengths.index_fill_(0, slots, 0)


class SlotCaches(KeyValueCaches):
    """Caches of a hybrid model: recurrent states and convolution tails too.

    states         [delta layers, slots, Hv, dk, dv]                 float32
    tails          [delta layers, slots, k - 1, channels]            model dtype, oldest first
    """

    def __init__(
        self,
        config: HybridConfig,
        num_slots: int,
        max_context: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        attention_layers = config.layer_types.count(FULL)
        kv_heads, dim = config.num_key_value_heads, config.head_dim
        super().__init__((attention_layers, num_slots, kv_heads, max_context, dim), device, dtype)
        delta_layers = config.layer_types.count(LINEAR)

        def zeros(*shape: int, of: torch.dtype = dtype) -> Tensor:
            return torch.zeros(shape, dtype=of, device=device)

        state_shape = (config.linear_key_head_dim, config.linear_value_head_dim)
        self.states = zeros(
            delta_layers, num_slots, config.linear_num_value_heads, *state_shape, of=torch.float32
        )
        tail = config.linear_conv_kernel_dim - 1
        self.tails = zeros(delta_layers, num_slots, tail, config.conv_channels)
        self.layer_states, self.layer_tails = self.states.unbind(), self.tails.unbind()

    def reset(self, slots: Tensor) -> None:
        """Forget ``slots`` [N] int64: zero lengths, states, tails and the rows ever committed."""
        super().reset(slots)
        self.states.index_fill_(1, slots, 0)
        self.tails.index_fill_(1, slots, 0)

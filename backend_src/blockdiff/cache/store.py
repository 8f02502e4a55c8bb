"""Per-slot memory of a hybrid model: keys and values, recurrent states, convolution tails.

Everything is allocated once. Knows nothing of rounds, requests or of who holds which slot.
"""

import torch
from torch import Tensor

from blockdiff.config import FULL, LINEAR, ModelConfig


class SlotCaches:
    """Preallocated caches for ``num_slots`` requests; written only by commits and ``reset``.

    keys, values   [attention layers, slots, Hkv, max_context, D]    model dtype
    states         [delta layers, slots, Hv, dk, dv]                 float32
    tails          [delta layers, slots, k - 1, channels]            model dtype, oldest first
    lengths        [slots] int64, committed tokens
    """

    def __init__(
        self,
        config: ModelConfig,
        num_slots: int,
        max_context: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.num_slots = num_slots
        self.max_context = max_context
        delta_layers = config.layer_types.count(LINEAR)
        attention_layers = config.layer_types.count(FULL)

        def zeros(*shape: int, of: torch.dtype = dtype) -> Tensor:
            return torch.zeros(shape, dtype=of, device=device)

        kv_shape = (attention_layers, num_slots, config.num_key_value_heads, max_context)
        self.keys = zeros(*kv_shape, config.head_dim)
        self.values = zeros(*kv_shape, config.head_dim)
        state_shape = (config.linear_key_head_dim, config.linear_value_head_dim)
        self.states = zeros(
            delta_layers, num_slots, config.linear_num_value_heads, *state_shape, of=torch.float32
        )
        tail = config.linear_conv_kernel_dim - 1
        self.tails = zeros(delta_layers, num_slots, tail, config.conv_channels)
        self.lengths = zeros(num_slots, of=torch.int64)
        # one view per layer, so that a layer does not index its stack in every round
        self.layer_keys, self.layer_values = self.keys.unbind(), self.values.unbind()
        self.layer_states, self.layer_tails = self.states.unbind(), self.tails.unbind()

    def reset(self, slots: Tensor) -> None:
        """Forget ``slots`` [N] int64: zero lengths, states, tails and the rows ever committed."""
        if slots.numel() == 0:
            return
        # stale rows are masked, but a masked nan would still poison a product with zero
        used = int(self.lengths.index_select(0, slots).max())
        self.keys[:, :, :, :used].index_fill_(1, slots, 0)
        self.values[:, :, :, :used].index_fill_(1, slots, 0)
        self.states.index_fill_(1, slots, 0)
        self.tails.index_fill_(1, slots, 0)
        self.lengths.index_fill_(0, slots, 0)

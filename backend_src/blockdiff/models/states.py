"""What a slot of the caches holds, as whole tensors by role and layer, for parity checks.

Knows the caches' layout and how heads are shared among ranks; knows nothing of files.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from blockdiff.cache import LayerCaches, SlotCaches
from blockdiff.config import LINEAR, AnyConfig, DiffusionGemmaConfig, HybridConfig
from blockdiff.models.share import Share


def slot_states(share: Share, caches: LayerCaches, slot: int, length: int) -> dict[str, Tensor]:
    """Copies of the states of ``slot`` after ``length`` committed tokens, as ``role/layer``.

    recurrent_state [Hv, dk, dv], conv_state [C, k], attention_key and attention_value
    [Hkv, kept, D], float32. All ranks of a group must call it together.
    """
    kinds = share.whole.layer_types
    found = {}
    for index, layer in enumerate(i for i, kind in enumerate(kinds) if kind == LINEAR):
        assert isinstance(caches, SlotCaches), "only hybrid models have such layers"
        state = caches.states[index, slot].clone()
        found[f"recurrent_state/{layer}"] = share.group.all_gather(state, 0)
        # [C, k]: the reference keeps one column more than the convolution needs
        tail = _channels(share, caches.tails[index, slot].float().t())
        found[f"conv_state/{layer}"] = functional.pad(tail, (1, 0))
    for index, layer in enumerate(i for i, kind in enumerate(kinds) if kind != LINEAR):
        keys, values = caches.committed(index, slot, length)
        copies = share.copies(_kv_count(share.whole, layer))
        for name, own in (("key", keys), ("value", values)):
            # [Hkv here, kept, D] of every rank, some of them copies
            everyone = share.group.all_gather(own.float().clone(), 0)
            found[f"attention_{name}/{layer}"] = everyone[::copies]
    return found


def _kv_count(config: AnyConfig, layer: int) -> int:
    """Key heads of ``layer`` in the whole model."""
    if isinstance(config, DiffusionGemmaConfig):
        return config.attention(layer).kv_heads
    return config.num_key_value_heads


def _channels(share: Share, own: Tensor) -> Tensor:
    """This rank's channels [C here, k - 1] -> all channels [C, k - 1]: q, k and v heads."""
    config = share.whole
    assert isinstance(config, HybridConfig), "only hybrid models have such layers"
    return torch.cat(list(_sections(share, config, own)))


def _sections(share: Share, config: HybridConfig, own: Tensor) -> Iterator[Tensor]:
    key_heads, key_dim = config.linear_num_key_heads, config.linear_key_head_dim
    start, stop = share.heads(key_heads, key_dim)
    keys = stop - start
    q, k, v = own.split_with_sizes((keys, keys, own.shape[0] - 2 * keys))
    for part in (q, k):
        # [heads of all ranks, dk, k - 1]
        heads = share.group.all_gather(part, 0).view(-1, key_dim, own.shape[1])
        yield heads[:: share.copies(key_heads)].flatten(0, 1)
    yield share.group.all_gather(v, 0)

"""Grouped-query attention of padded segments over their slots' caches and their own rows.

s_ij = q_i . k_j / sqrt(D) over j in [cached rows of the slot < context | own rows]
own rows: all of the segment (preview), j <= i (causal commit) or, with p the absolute position and
B the block length, p_j // B <= p_i // B (block-causal commit);  o_i = sum_j softmax(s_i)_j v_j
query head h uses key head h // (Hq / Hkv)
"""

from torch import Tensor

from blockdiff_kernels.attention import reference


def visibility(
    contexts: Tensor,
    lengths: Tensor,
    rows: int,
    cached: int,
    causal: bool,
    block_lengths: Tensor | None = None,
) -> Tensor:
    """Which keys a row may see, built once per round: [G, 1, T, cached + T] bool.

    contexts [G] int64: rows of the slot's cache that count; lengths [G] int64: valid own rows;
    rows T; cached: how many cache rows are read at all (at least the largest context).
    block_lengths [G] int64: ``causal`` goes by blocks of the grid anchored at 0, not by rows.
    """
    return reference.visibility(contexts, lengths, rows, cached, causal, block_lengths)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cache_key: Tensor,
    cache_value: Tensor,
    slots: Tensor,
    visible: Tensor | None,
    mask: Tensor | None = None,
) -> Tensor:
    """Attend; returns o [G, T, Hq, D] in ``query.dtype``. The caches are only read.

    query [G, T, Hq, D]; key, value [G, T, Hkv, D] of the segment's own rows;
    cache_key, cache_value [slots, Hkv, M, D]; slots [G] int64.
    visible: from ``visibility`` (None: nothing cached, no padding, not causal).
    mask [G, T] bool: False rows are padding, whose contents reach nothing (None: none).
    """
    return reference.attention(query, key, value, cache_key, cache_value, slots, visible, mask)

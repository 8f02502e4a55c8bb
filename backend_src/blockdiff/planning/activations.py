"""Bytes that a round needs for a moment, on one device: activations of the forward, then logits.

Written after ``models.layers``, the kernels' references and ``engine.forward``: where the code
there changes, these change. Knows nothing of weights or of caches.
"""

from dataclasses import dataclass

from blockdiff.planning.dtypes import QUANTISED_DTYPES, STATE_BYTES, element_bytes
from blockdiff.planning.shape import AttentionShape, DeltaShape, ExpertShape, ModelShape

GREEDY_TILE = 1 << 24
SAMPLED_TILE = 1 << 22
DELTA_CHUNK = 64


@dataclass(frozen=True)
class Load:
    """What runs at the same time."""

    slots: int
    context: int
    block_length: int
    prefill_rows: int

    @property
    def rows(self) -> int:
        """Rows of the largest round: prompts, and in every slot a commit and a preview."""
        return self.prefill_rows + 2 * self.slots * self.block_length


def activation_bytes(shape: ModelShape, dtype: str, load: Load) -> int:
    """The residual stream and the largest stage of a layer."""
    size = element_bytes(dtype)
    stream = 4 * load.rows * shape.hidden_size * size
    stages = [
        _attention_stage(kind, size, load, shape.read_positions(kind, load.context))
        for kind in shape.attention
    ]
    if shape.delta is not None:
        stages.append(_delta_stage(shape.delta, size, load))
    if shape.experts is not None:
        stages.append(_expert_stage(shape.experts, shape.hidden_size, size, load))
    if shape.dense is not None:
        # gate and up side by side, the activated gate, the product
        stages.append(load.rows * 4 * shape.dense.width * size)
    return stream + max(stages) + _dequantised(shape, dtype)


def _dequantised(shape: ModelShape, dtype: str) -> int:
    """The largest projection, made dense in float32 and converted, where weights are quantised."""
    if dtype not in QUANTISED_DTYPES:
        return 0
    outputs = [kind.projected_width for kind in shape.attention]
    if shape.delta is not None:
        outputs.append(shape.delta.channels + shape.delta.value_heads * shape.delta.value_dim)
    outputs += [2 * own.width for own in (shape.dense, shape.experts) if own is not None]
    return max(outputs) * shape.hidden_size * (4 + element_bytes(dtype))


def _delta_stage(own: DeltaShape, size: int, load: Load) -> int:
    """Projections and their padded copy; fp32 chunks of the scan; each slot's state, twice."""
    heads, keys, values = own.value_heads, own.key_dim, own.value_dim
    projected = own.channels + heads * (values + 2)
    # inputs, their chunks, right-hand sides, solutions, scaled queries and keys, outputs
    per_head = 2 * (2 * keys + values) + 2 * (keys + values) + 2 * keys + values + 3 * DELTA_CHUNK
    per_row = 2 * projected * size + heads * per_head * 4
    return load.rows * per_row + 2 * load.slots * own.state_elements * STATE_BYTES


def _attention_stage(own: AttentionShape, size: int, load: Load, places: int) -> int:
    """Projections, padded and mixed; all slots' keys and values gathered, joined and, in 16 bits,
    packed for the product; masks. ``places``: positions read."""
    cached = 2 * own.key_width * size * load.slots * places
    # every group keeps its mask for the round; attention turns one at a time into a bias
    largest_group = max(load.slots * load.block_length, load.prefill_rows)
    masks = (load.rows + largest_group * size) * places
    copies = 2 if size == 4 else 3
    return 3 * load.rows * own.projected_width * size + copies * cached + masks


def _expert_stage(own: ExpertShape, hidden: int, size: int, load: Load) -> int:
    """Rows by expert: gathered, computed, scaled; and their inner activations."""
    copies = own.chosen + own.shared_copies
    return load.rows * copies * (3 * hidden + 3 * own.width) * size


def sampling_bytes(shape: ModelShape, dtype: str, load: Load) -> int:
    """A tile of logits with its copies; with noise a smaller tile, sorted and with int64 copies."""
    rows, vocabulary = load.slots * load.block_length, shape.vocab_size
    greedy = min(rows, max(GREEDY_TILE // vocabulary, 1))
    sampled = min(rows, max(SAMPLED_TILE // vocabulary, 1))
    greedy_bytes = greedy * vocabulary * (element_bytes(dtype) + 2 * 4)
    return max(greedy_bytes, sampled * vocabulary * (3 * 4 + 4 * 8))

"""The shape of a model on paper: sizes by kind of layer, and parameters by part.

What the formulas of a plan read, whatever the family. Knows no configs, devices or requests.
"""

from dataclasses import dataclass, field

from blockdiff.pages import count_pages, default_page_length, round_up


@dataclass(frozen=True)
class AttentionShape:
    """Softmax-attention layers of one kind."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    has_gate: bool = False
    kept: int | None = None  # committed positions that a sliding window keeps; None: all
    has_value_projection: bool = True  # False: values are the keys' projection

    @property
    def query_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def key_width(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def projected_width(self) -> int:
        """Queries, their gates, keys and values side by side."""
        return (2 if self.has_gate else 1) * self.query_width + 2 * self.key_width

    @property
    def stored_width(self) -> int:
        """Of the projections that there are weights of."""
        return self.projected_width - (0 if self.has_value_projection else self.key_width)


@dataclass(frozen=True)
class DeltaShape:
    """Gated DeltaNet layers."""

    layers: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int  # of the convolution; a tail of one input less is kept

    @property
    def channels(self) -> int:
        """Channels of the convolution: queries, keys and values side by side."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def state_elements(self) -> int:
        """Numbers in one layer's recurrent state of one request."""
        return self.value_heads * self.key_dim * self.value_dim


@dataclass(frozen=True)
class ExpertShape:
    """Layers with routed experts, and a shared expert where ``shared_width`` is not 0."""

    layers: int
    count: int
    chosen: int
    width: int
    shared_width: int = 0

    @property
    def shared_copies(self) -> int:
        """Routed experts' widths that the shared expert fills: it is kept padded to them."""
        return -(-self.shared_width // self.width)


@dataclass(frozen=True)
class DenseShape:
    """Layers with one feed-forward that every row uses."""

    layers: int
    width: int


@dataclass(frozen=True)
class ModelShape:
    """A family's model as the formulas see it."""

    family: str
    vocab_size: int
    hidden_size: int
    max_context: int
    block_length: int
    parts: dict[str, int]  # part, named as in ``blockdiff.weights.groups`` -> parameters
    attention: tuple[AttentionShape, ...] = ()
    delta: DeltaShape | None = None
    experts: ExpertShape | None = None
    dense: DenseShape | None = None
    signal_elements: int = 0  # numbers that one request's canvas keeps from step to step
    has_fixed_block: bool = False  # the block length is the model's, not the request's
    unused_parts: tuple[str, ...] = ()  # that a checkpoint may hold all the same
    copied_names: str = ""  # pattern of stored names that repeat other tensors; empty: none
    float32_parts: frozenset[str] = field(default_factory=frozenset)  # in float32 in every dtype

    def kept_positions(self, kind: AttentionShape, context: int) -> int:
        """Positions that layers of ``kind`` keep of ``context`` tokens: pages, or a window."""
        if kind.kept is not None:
            return min(kind.kept, context)
        return count_pages(context, self.page_length) * self.page_length

    def read_positions(self, kind: AttentionShape, context: int) -> int:
        """Positions that such layers read of ``context`` committed ones in a round."""
        if kind.kept is not None:
            return min(kind.kept, context)
        return round_up(count_pages(context, self.page_length)) * self.page_length

    @property
    def page_length(self) -> int:
        """Positions of a page."""
        return default_page_length(self.block_length)

    @property
    def has_tied_head(self) -> bool:
        return "output head" not in self.parts

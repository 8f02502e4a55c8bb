"""Facts of a checkpoint that requests are checked against.

Needs no torch, so that processes without a model can check requests too. Knows nothing of tensors.
"""

from dataclasses import dataclass

from blockdiff.config import UniformDefaults

NO_MASK_TOKEN = -1
NO_CONTROL_TOKEN = -1


@dataclass(frozen=True)
class ModelInfo:
    """Facts of a loaded checkpoint. Filled by the model from its config, never changed."""

    model_type: str
    vocab_size: int
    block_length: int  # the trained one, used when a request names none
    mask_token_id: int  # NO_MASK_TOKEN: the checkpoint has none, so no block can start as masks
    eos_token_ids: tuple[int, ...]
    max_context: int
    default_threshold: float = 0.9
    block_lengths_allowed: tuple[int, ...] | None = None  # None: any from 1 up
    allows_short_blocks: bool = (
        True  # whether a request's last block may be shorter than the others
    )
    block_anchor: str = "prompt_end"  # or "zero": block b covers positions b*B..(b+1)*B-1
    supports_autoregressive: bool = True
    supports_editing: bool = False
    # tokens of insert and delete editing, both or neither; like the mask they are never output
    delete_token_id: int = NO_CONTROL_TOKEN
    split_token_id: int = NO_CONTROL_TOKEN
    algorithms: tuple[str, ...] = ("low_confidence",)  # the first one is the default
    uniform: UniformDefaults | None = None  # set: canvases start as random tokens, not as masks
    is_deterministic: bool = False  # results of a request do not depend on the batch
    num_experts: int = 0  # routed ones of a layer
    expert_layers: tuple[int, ...] = ()  # numbers of the layers that have them

    @property
    def decodes_blocks(self) -> bool:
        """Whether there is anything that a block could start as."""
        return self.mask_token_id >= 0 or self.uniform is not None

    @property
    def edits_length(self) -> bool:
        """Whether token editing may also insert and delete."""
        return self.delete_token_id >= 0

    @property
    def control_token_ids(self) -> tuple[int, ...]:
        """Tokens that no output holds."""
        own = (self.mask_token_id, self.delete_token_id, self.split_token_id)
        return tuple(token for token in own if token >= 0)

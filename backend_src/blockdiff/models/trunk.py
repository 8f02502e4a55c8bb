"""What all loaded checkpoints share: embedding, output head, and the calls made of them.

Knows nothing of layers, files, requests or sampling.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from blockdiff.cache import LayerCaches
from blockdiff.config import AnyConfig
from blockdiff.models.base import ModelCaches, ModelInfo, OutputHead, RoundBatch
from blockdiff.models.expert_hits import ExpertHits
from blockdiff.models.layers.embedding import make_embedding
from blockdiff.models.layers.host_layout import HostLayout
from blockdiff.models.layers.layout import RoundLayout
from blockdiff.models.layers.trace import Trace
from blockdiff.models.numerics import Numerics
from blockdiff.models.round_shape import RoundShape
from blockdiff.models.share import Share
from blockdiff.models.states import slot_states
from blockdiff.pages import CachePool, CacheSizes
from blockdiff.transfer import to_device
from blockdiff_kernels.head import logits
from blockdiff_kernels.packed import is_packed

# adds its result to a residual [R, H], if it is given one
Summand = Callable[[Tensor | None], Tensor]


class LanguageModel(ABC):
    """A loaded checkpoint, or one rank's share of it; families add their layers.

    ``config`` has this rank's numbers of heads. Layers give this rank's summand of their result;
    the family adds up those of all ranks.
    """

    formulation: str
    """What rows of a block see: how previews mix them (hybrid), or how commits go (attention)."""
    config: AnyConfig
    bytes_read = 0
    """Of the checkpoint's weights, for this rank; set by the loader."""
    logit_cap: float | None = None
    """Soft bound of logits, where a family has one."""

    def __init__(
        self,
        info: ModelInfo,
        embedding: Tensor,
        output: Tensor,
        share: Share,
        numerics: Numerics,
    ) -> None:
        """``embedding`` and ``output`` [V here, H] are this rank's rows of the vocabulary.

        An ``output`` of its own becomes what ``numerics`` makes of it.
        """
        self.info = replace(info, is_deterministic=numerics.is_deterministic)
        self.share = share
        self.numerics = numerics
        self.group = share.group
        self.embed = make_embedding(embedding, share.group)
        self.output = output if output is embedding else numerics.head(output)
        self.hidden_size = embedding.shape[1]
        self.device = embedding.device
        self.dtype = embedding.dtype

    @abstractmethod
    def new_caches(
        self, num_slots: int, max_context: int, pool: CachePool | None = None
    ) -> LayerCaches:
        """Preallocated caches; see ``models.base``."""

    @abstractmethod
    def cache_sizes(self, page_length: int, max_context: int | None = None) -> CacheSizes:
        """Bytes of a page and of a state line; see ``models.base``."""

    @abstractmethod
    def prepare(
        self, batch: RoundBatch, caches: ModelCaches, shape: RoundShape | None = None
    ) -> HostLayout:
        """The index maps of ``batch``, on the host; ``shape``: filled up to it."""

    @abstractmethod
    def run(
        self,
        host: HostLayout,
        moved: Mapping[str, Tensor],
        caches: ModelCaches,
        trace: Trace | None = None,
        hits: ExpertHits | None = None,
    ) -> Tensor:
        """``hidden`` of a round that ``prepare`` has laid out; ``moved``: its arrays as tensors.

        Reads of the round nothing but these tensors and what ``host`` says besides its arrays.
        """

    def hidden(
        self,
        batch: RoundBatch,
        caches: ModelCaches,
        trace: Trace | None = None,
        hits: ExpertHits | None = None,
    ) -> Tensor:
        """Final normalised hidden rows [L, H] of ``batch.logit_rows``; see ``models.base``."""
        host = self.prepare(batch, caches)
        return self.run(host, to_device(host.arrays, self.device), caches, trace, hits)

    @property
    def output_head(self) -> OutputHead | None:
        """See ``models.base``; None where ranks share the vocabulary, every row is on its own or
        the weight is packed for a CPU's library."""
        is_shared = self.group.size > 1
        if is_shared or self.numerics.is_deterministic or is_packed(self.output):
            return None
        return OutputHead(self.output, self.logit_cap)

    @torch.inference_mode()
    def head(self, hidden: Tensor) -> Tensor:
        """Logits [L, V] float32."""
        cap = self.logit_cap
        own = self.numerics.run(
            ("head", *self.output.shape), lambda rows: logits(rows, self.output, cap), hidden
        )
        return self.group.all_gather(own, 1)

    def add(self, x: Tensor, summand: Summand) -> Tensor:
        """x [R, H] plus all ranks' summands; alone, the summand's last projection adds x."""
        if self.group.size == 1:
            return summand(x)
        return x + self.group.all_reduce(summand(None))

    def forward(self, batch: RoundBatch, caches: ModelCaches) -> Tensor:
        """Logits [L, V] float32 of ``batch.logit_rows``."""
        return self.head(self.hidden(batch, caches))

    def check(self) -> None:
        """See ``models.base``; one process either works or is not there to be asked."""
        return

    def close(self) -> None:
        """Nothing outlives a model of one process."""
        return

    @torch.inference_mode()
    def slot_states(self, caches: ModelCaches, slot: int, length: int) -> dict[str, Tensor]:
        """What ``slot`` holds after ``length`` committed tokens; see ``models.states``."""
        assert isinstance(caches, LayerCaches), "caches come from new_caches"
        return slot_states(self.share, caches, slot, length)


def rows_to_finish(layout: RoundLayout, trace: Trace | None) -> Tensor | None:
    """Rows [L] that the last layer's feed-forward must still see; None: all of them.

    Its results at other rows are nobody's input, unless they are looked at or routers choose for
    whole blocks.
    """
    is_looked_at = trace is not None or layout.blocks is not None
    return None if is_looked_at else layout.logit_rows

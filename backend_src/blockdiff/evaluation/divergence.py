"""How far two models' predictions are apart on the same inputs, teacher-forced.

For every block of a given answer: the prompt and the answer's earlier blocks are committed, the
block is all masks (but for prompt tokens in it), and both models predict it once. Without a mask
token: both read prompt and answer causally. Knows nothing of decoding or of texts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from blockdiff.core import Phase
from blockdiff.model_info import NO_MASK_TOKEN
from blockdiff.models.base import BlockDiffusionModel, ModelInfo, RoundBatch, Segment


@dataclass(frozen=True)
class Divergence:
    """Sum of KL(reference || model) in nats over so many predicted positions."""

    total: float
    positions: int

    @property
    def mean(self) -> float:
        return self.total / max(self.positions, 1)


def measure_divergence(
    model: BlockDiffusionModel,
    reference: BlockDiffusionModel,
    prompt: Sequence[int],
    answer: Sequence[int],
) -> Divergence:
    """Over the positions of ``answer``; both models have the same vocabulary and blocks."""
    total, positions = 0.0, 0
    pairs = (_predict(own, prompt, answer) for own in (reference, model))
    for wanted, got in zip(*pairs, strict=True):
        log_wanted, log_got = wanted.log_softmax(-1), got.log_softmax(-1)
        total += float((log_wanted.exp() * (log_wanted - log_got)).sum())
        positions += wanted.shape[0]
    return Divergence(total, positions)


def _predict(
    model: BlockDiffusionModel, prompt: Sequence[int], answer: Sequence[int]
) -> Iterator[Tensor]:
    """Logits [n, V] of the answer's positions, block by block."""
    tokens, info = [*prompt, *answer], model.info
    caches = model.new_caches(1, len(tokens) + info.block_length)
    if info.mask_token_id == NO_MASK_TOKEN:
        rows = range(len(prompt) - 1, len(tokens) - 1)
        segment = Segment(Phase.PREFILL, 0, 0, tokens, rows)
        yield model.forward(RoundBatch.from_segments([segment]), caches)
        return
    done = 0
    for start, canvas, rows in _blocks(info, prompt, tokens):
        segments = []
        if start > done:
            context = tokens[done:start]
            segments.append(Segment(Phase.PREFILL, 0, done, context, (), info.block_length))
            done = start
        segments.append(Segment(Phase.PREVIEW, 0, start, canvas, rows, info.block_length))
        yield model.forward(RoundBatch.from_segments(segments), caches)


def _blocks(
    info: ModelInfo, prompt: Sequence[int], tokens: Sequence[int]
) -> Iterator[tuple[int, list[int], range]]:
    """Start, canvas and predicted rows of every block that has a position of the answer."""
    length, first = info.block_length, len(prompt)
    grid = first if info.block_anchor == "prompt_end" else first // length * length
    for start in range(grid, len(tokens), length):
        known = list(prompt[start:]) if start < first else []
        canvas = known + [info.mask_token_id] * (length - len(known))
        yield start, canvas, range(len(known), min(length, len(tokens) - start))

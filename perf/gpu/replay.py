"""Rounds that are filled up and replayed beside the same rounds launched one by one.

Knows captured rounds; knows nothing of requests or reports.
"""

from collections.abc import Iterator, Sequence

import torch

from blockdiff.core import Phase
from blockdiff.engine.captured_rounds import CapturedRounds
from blockdiff.engine.recorder import CudaRecorder, PlainRecorder, Recorder
from blockdiff.engine.step_shapes import step_shapes
from blockdiff.models.base import RoundBatch, Segment
from blockdiff_kernels.implementation import using
from perf.gpu.correctness import Verdict
from perf.gpu.random_weights import random_model
from perf.gpu.sizes import Sizes
from perf.gpu.step import median_error

REPLAY_LABEL = "replay/few-layers"
SLOTS = 3
BLOCKS = (2, 4)
# of bfloat16 rows whose products were tiled for other sizes
LIMIT = 2e-2


def check_replays(sizes: Sizes, device: torch.device) -> Verdict:
    """Every kind of captured round, twice, with other contents in between."""
    # the interpreter takes minutes for so many rounds; tests of the engine replay kernels with it
    kernels = "triton" if device.type == "cuda" else "reference"
    with using(kernels), torch.inference_mode():
        model = random_model(sizes.config(sizes.attention_every), device)
        plain, own = (model.new_caches(SLOTS, sizes.context + 8 * sizes.block) for _ in range(2))
        room = own.room
        assert room.pages_per_slot is not None, "slots have pages of their own"
        shapes = step_shapes(model.info, BLOCKS, SLOTS, room.pages_per_slot)
        recorder: Recorder = PlainRecorder() if device.type == "cpu" else CudaRecorder(device)
        captured = CapturedRounds(model, own, shapes, recorder)
        captured.capture(None)
        own.prepare(room.renew(range(SLOTS)))
        prompts = RoundBatch.from_segments(
            [_segment(Phase.PREFILL, slot, 0, sizes.context) for slot in range(SLOTS)]
        )
        for caches in (plain, own):
            model.hidden(prompts, caches)
        errors = []
        for segments in _rounds(sizes.context, sizes.block):
            batch = RoundBatch.from_segments(segments)
            shape = captured.find(batch)
            assert not isinstance(shape, str), shape
            exact = model.hidden(batch, plain).float()
            errors.append(median_error(captured.hidden(batch, shape).float(), exact))
        for mine, theirs in zip(own.state_stores, plain.state_stores, strict=True):
            difference = (mine.float() - theirs.float()).norm() / theirs.float().norm()
            errors.append(float(difference.nan_to_num(float("inf"))))
    return Verdict(REPLAY_LABEL, max(errors), LIMIT)


def _segment(phase: Phase, slot: int, context: int, count: int) -> Segment:
    ids = [(7 * (context + step) + slot) % 250 for step in range(count)]
    rows = range(count) if phase is Phase.PREVIEW else ()
    return Segment(phase, slot, context, ids, rows, block_length=count)


def _rounds(context: int, block: int) -> Iterator[Sequence[Segment]]:
    """Previews, commits riding along, commits of all, and previews again."""
    ends = [context] * SLOTS
    for writing in ((), (0,), (1, 2), (), (2,), (0, 1, 2)):
        commits = [_segment(Phase.COMMIT, slot, ends[slot], block) for slot in writing]
        for slot in writing:
            ends[slot] += block
        # no more than the largest captured round has room for
        count = max(BLOCKS) - len(writing)
        previews = [
            _segment(Phase.PREVIEW, slot, ends[slot], block) for slot in range(SLOTS)[:count]
        ]
        yield [*commits, *previews]

"""Recorded draws in place of seeded noise, for requests that replay a run of another engine.

Knows how fixtures lay draws out; knows nothing of acceptance or of the command line.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from blockdiff.cli.recorded import RecordedTensors
from blockdiff.decoding.draws import DrawSource, NoiseDraws, Places, Sampler
from blockdiff.errors import RequestError
from blockdiff.jobs import DrawNames, Job
from blockdiff.models.base import ModelInfo

Ints = npt.NDArray[np.int64]
_NO_ID = -1


@dataclass(frozen=True)
class ReplayEnd:
    """Where a run asked for a draw that was not recorded."""

    block: int
    text: str


@dataclass(frozen=True)
class CanvasDraws:
    """The draws of one canvas of B places."""

    start: Ints  # [1, B]
    sampled: Ints  # [steps, B]
    fresh: Ints  # [steps, B]


class RecordedDraws:
    """Recorded draws for the requests that have them, those of ``others`` for the rest.

    A request whose record ends goes on with ``others``, so that the round's other requests are not
    disturbed; ``ended`` says by uid from where on its output means nothing.
    """

    def __init__(self, by_uid: Mapping[int, Sequence[CanvasDraws]], others: DrawSource) -> None:
        self.ended: dict[int, ReplayEnd] = {}
        self._by_uid = by_uid
        self._others = others

    def start(self, places: Places) -> Ints:
        """See ``DrawSource``."""
        first = places._replace(steps=np.zeros_like(places.steps))
        known = self._look_up(first, "start")
        return np.where(known == _NO_ID, self._others.start(places), known)

    def fresh(self, places: Places) -> Ints:
        """See ``DrawSource``."""
        known = self._look_up(places, "fresh")
        return np.where(known == _NO_ID, self._others.fresh(places), known)

    def sampler(self, places: Places, device: torch.device) -> Sampler:
        """See ``DrawSource``."""
        known = torch.from_numpy(self._look_up(places, "sampled")).to(device)
        draw = self._others.sampler(places, device)

        def sample(scaled: Tensor, rows: slice) -> Tensor:
            return torch.where(known[rows] == _NO_ID, draw(scaled, rows), known[rows])

        return sample

    def keys(self, places: Places) -> Ints | None:
        """See ``DrawSource``: what is recorded has none."""
        return None

    def _look_up(self, places: Places, kind: str) -> Ints:
        """Recorded ids [N], ``_NO_ID`` for places of requests without a record."""
        found = np.full(len(places.places), _NO_ID, np.int64)
        for uid, canvases in self._by_uid.items():
            own = np.flatnonzero(places.uids == uid)
            if not len(own):
                continue
            block, step = int(places.blocks[own[0]]), int(places.steps[own[0]])
            steps = getattr(canvases[block], kind) if block < len(canvases) else ()
            if step < len(steps):
                found[own] = steps[step][places.places[own]]
            else:
                text = f"inputs: the recorded draws end before step {step} of canvas {block}"
                self.ended.setdefault(uid, ReplayEnd(block, text))
        return found


def read_draws(
    jobs: Sequence[Job], info: ModelInfo, recorded: RecordedTensors
) -> RecordedDraws | None:
    """The draws of all jobs that replay; None if there are none."""
    by_uid = {
        job.request.uid: _read(job.replay, info, recorded) for job in jobs if job.replay is not None
    }
    if not by_uid:
        return None
    if info.uniform is None:
        raise RequestError(f"replay: {info.model_type} draws no canvases; leave it out")
    return RecordedDraws(by_uid, NoiseDraws(info.vocab_size))


def _read(inputs: DrawNames, info: ModelInfo, recorded: RecordedTensors) -> list[CanvasDraws]:
    if not len(inputs.start_canvas) == len(inputs.sampled) == len(inputs.random):
        raise RequestError("inputs: start_canvas, sampled and random need one name per canvas each")
    length = info.block_length

    def ids(name: str, shape: tuple[int | None, ...]) -> Ints:
        values = recorded.read(name, shape).to(torch.int64)
        if values.numel() and not 0 <= int(values.min()) <= int(values.max()) < info.vocab_size:
            raise RequestError(f"inputs: {name!r} holds ids outside of 0 to {info.vocab_size - 1}")
        array: Ints = values.numpy()
        return array

    names = zip(inputs.start_canvas, inputs.sampled, inputs.random, strict=True)
    return [
        CanvasDraws(
            start=ids(start, (length,))[None],
            sampled=ids(sampled, (None, length)),
            fresh=ids(fresh, (None, length)),
        )
        for start, sampled, fresh in names
    ]

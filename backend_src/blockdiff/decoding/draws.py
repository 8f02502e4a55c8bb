"""Where random tokens come from: counter-based noise, so that output depends on request and seed.

Knows nothing of acceptance, engines or files. Other sources implement ``DrawSource``.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from blockdiff.decoding.noise import noise_keys, uniform_ids
from blockdiff_kernels.head.noise import gumbel_noise

Ints = npt.NDArray[np.int64]
# scaled logits [L, V] of the places in a slice -> ids [L]
Sampler = Callable[[Tensor, slice], Tensor]
# noise streams of one request, kept apart by what is added to its seed
_START, _FRESH = 0xA0761D6478BD642F, 0xE7037ED1A0B428DB


class Places(NamedTuple):
    """Places of canvases that need a token each: whose, where and when. All [N]."""

    uids: Ints
    seeds: npt.NDArray[np.uint64]
    blocks: Ints
    """Number of the canvas in its response."""
    steps: Ints
    """Number of the step in the canvas, from 0."""
    places: Ints
    """In the canvas."""
    positions: Ints
    """In the sequence."""


class DrawSource(Protocol):
    """Tokens for canvases."""

    def start(self, places: Places) -> Ints:
        """Ids [N] that canvases begin with."""
        ...

    def fresh(self, places: Places) -> Ints:
        """Ids [N] for places that were not accepted, if they were not."""
        ...

    def sampler(self, places: Places, device: torch.device) -> Sampler:
        """Draws from softmax(scaled logits), for ``places`` in order, a slice at a time."""
        ...

    def keys(self, places: Places) -> Ints | None:
        """Keys [N, 2] of the noise that ``sampler`` draws with; None: it draws in another way."""
        ...


class NoiseDraws:
    """Draws that are a pure function of seed, position and step."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    def start(self, places: Places) -> Ints:
        """See ``DrawSource``."""
        return self._ids(places, _START)

    def fresh(self, places: Places) -> Ints:
        """See ``DrawSource``."""
        return self._ids(places, _FRESH)

    def sampler(self, places: Places, device: torch.device) -> Sampler:
        """See ``DrawSource``."""
        keys = torch.from_numpy(self.keys(places)).to(device)

        def sample(scaled: Tensor, rows: slice) -> Tensor:
            return (scaled + gumbel_noise(keys[rows], scaled.shape[1])).argmax(dim=1)

        return sample

    def keys(self, places: Places) -> Ints:
        """See ``DrawSource``."""
        return noise_keys(places.seeds, places.positions, places.steps)

    def _ids(self, places: Places, stream: int) -> Ints:
        keys = noise_keys(places.seeds ^ np.uint64(stream), places.positions, places.steps)
        return uniform_ids(keys, self._vocab_size)

"""Where a response ends inside a canvas: EOS ids and the token limit, for all requests at once.

Works on position flags (masked, response), never on what a masked position happens to hold.
Knows nothing of text; stop strings are looked for by the engine's text streams.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Ending(NamedTuple):
    """All [G] int64, in positions of the block."""

    settled: npt.NDArray[np.int64]
    """Leading positions that can no longer change."""
    eos: npt.NDArray[np.int64]
    """First accepted EOS of the response that lies in the settled part, or -1."""


def find_endings(
    canvas: npt.NDArray[np.int64],
    masked: npt.NDArray[np.bool_],
    block_length: npt.NDArray[np.int64],
    first_ending: npt.NDArray[np.int64],
    eos_ids: npt.NDArray[np.int64],
) -> Ending:
    """Settled prefix and settled EOS per canvas.

    canvas [G, B], masked [G, B] (False beyond the block), block_length [G], first_ending [G]
    (positions before it are prompt, or too early to end), eos_ids [G, E] padded with -1 (no token
    has a negative id).
    """
    places = np.arange(canvas.shape[1])[None, :]
    settled = np.where(masked.any(axis=1), masked.argmax(axis=1), block_length)
    is_eos = np.zeros(canvas.shape, np.bool_)
    for used in np.flatnonzero((eos_ids >= 0).any(axis=0)):
        is_eos |= canvas == eos_ids[:, used, None]
    is_eos &= (places >= first_ending[:, None]) & (places < settled[:, None])
    eos = np.where(is_eos.any(axis=1), is_eos.argmax(axis=1), -1)
    return Ending(settled.astype(np.int64), eos.astype(np.int64))

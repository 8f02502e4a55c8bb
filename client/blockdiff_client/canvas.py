"""A block that is being denoised, as ``stream_denoise`` sends it. Data only."""

from __future__ import annotations

from dataclasses import dataclass

MASKED, OPEN, SETTLED = "masked", "open", "settled"


@dataclass(frozen=True)
class CanvasPlace:
    """One place. ``text`` is None where it is masked; ``guess`` is what was not accepted there.

    ``confidence`` belongs to either; None where the server did not look.
    """

    text: str | None
    state: str
    confidence: float | None = None
    guess: str | None = None


@dataclass(frozen=True)
class Canvas:
    """The places of a block after preview ``step`` (from 0). ``first_token`` is the place of the
    first one in the output; ``is_finished`` says that the block's text came with it.
    """

    block: int
    step: int
    first_token: int
    is_finished: bool
    places: tuple[CanvasPlace, ...]

    @property
    def num_masked(self) -> int:
        return sum(place.state == MASKED for place in self.places)

"""The slot table: everything the scheduler knows of running requests, one array line per slot.

Whether a position is prompt, masked or accepted is a flag of the position (``masked``,
``first_response``), never a property of the token id stored there.
Knows nothing of rounds, results or text.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from blockdiff.core import DecodingParams, Mode, Request, SamplingParams
from blockdiff.decoding.acceptance import ALGORITHMS, LOW_CONFIDENCE, NO_THRESHOLD
from blockdiff.decoding.uniform import ENTROPY_BOUND
from blockdiff.scheduler.load import LoadAware
from blockdiff.scheduler.pins import NO_PINS, Pins

Ints = npt.NDArray[np.int64]
Tokens = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]

MAX_EOS_IDS = 16
NO_TOKEN = -1
DEFAULT_POST_STEPS = 16
FIRST_WIDTH = 8


# ids [block length] that the block which a slot has just opened begins with
StartCanvas = Callable[["SlotTable", int], Ints]


class BlockOpening(NamedTuple):
    """What an engine's blocks have in common when they open."""

    start_canvas: StartCanvas | None = None  # None: they begin as masks
    truncates_last: bool = False
    load_aware: LoadAware | None = None


class SlotState(IntEnum):
    FREE = 0
    PREFILL = 1
    DECODE = 2


class SlotTable:
    """State of ``num_slots`` requests. ``open`` fills a slot, ``close`` empties it."""

    def __init__(self, num_slots: int, mask_token_id: int, opening: BlockOpening) -> None:
        self.num_slots = num_slots
        self._opening = opening
        self.pressure = 0.0
        self.mask_token_id = mask_token_id
        self.state = self._ints()
        self.uid = self._ints()
        self.priority = self._ints()
        self.pins: list[Pins] = [NO_PINS] * num_slots
        self.arrival = self._ints()
        self._arrivals = 0
        self.prompt_length = self._ints()
        self.prefill_granule = self._ints()
        # Tokens by position: the first ``final`` are, and the caches hold the first ``written``.
        self.sequences: Tokens = np.zeros((num_slots, FIRST_WIDTH), np.int32)
        self.final = self._ints()
        self.written = self._ints()

        self.is_autoregressive: Flags = np.zeros(num_slots, np.bool_)
        self.end_position = self._ints()
        self.eos_allowed_from = self._ints()
        self.eos_ids: Ints = np.full((num_slots, MAX_EOS_IDS), NO_TOKEN, np.int64)
        # A request's own limits, and those of its open block.
        self._own_limits: list[tuple[float, int]] = [(0.0, 0)] * num_slots
        self.is_elastic: Flags = np.zeros(num_slots, np.bool_)
        self.schedule_steps = self._ints()
        self.threshold: Floats = np.zeros(num_slots, np.float32)
        self.algorithm = self._ints()
        self.least_accepted = self._ints()
        self.is_editing: Flags = np.zeros(num_slots, np.bool_)
        self.editing_threshold: Floats = np.zeros(num_slots, np.float32)
        self.max_post_steps = self._ints()
        # For canvases that start as random tokens.
        self.t_min: Floats = np.zeros(num_slots, np.float32)
        self.t_max: Floats = np.zeros(num_slots, np.float32)
        self.stability_threshold = self._ints()
        self.confidence_threshold: Floats = np.zeros(num_slots, np.float32)
        self.temperature: Floats = np.zeros(num_slots, np.float32)
        self.top_k = self._ints()
        self.top_p: Floats = np.ones(num_slots, np.float32)
        self.seed: npt.NDArray[np.uint64] = np.zeros(num_slots, np.uint64)

        # All blocks of a slot but a truncated last one; the grid of commits.
        self.full_length = self._ints()
        # The open block of each slot.
        self.block_length = self._ints()
        self.block_start = self._ints()
        self.block_index = self._ints()
        self.first_response = self._ints()
        self.step = self._ints()
        # Previews of the open block that left no place open; whether its tokens may still change.
        self.post_steps = self._ints()
        self.is_unsettled: Flags = np.zeros(num_slots, np.bool_)
        self.canvas: Ints = np.zeros((num_slots, FIRST_WIDTH), np.int64)
        self.masked: Flags = np.zeros((num_slots, FIRST_WIDTH), np.bool_)
        # Places whose tokens the request gave: neither open nor ever changed.
        self.pinned: Flags = np.zeros((num_slots, FIRST_WIDTH), np.bool_)
        self.log_probs: Floats = np.zeros((num_slots, FIRST_WIDTH), np.float32)

        # Rounds by kind: prefill, preview, commit, fused commit.
        self.forwards: Ints = np.zeros((num_slots, 4), np.int64)

    def _ints(self) -> Ints:
        return np.zeros(self.num_slots, np.int64)

    @property
    def has_random_canvases(self) -> bool:
        """Whether canvases begin as random tokens; a preview then decides all of a canvas."""
        return self._opening.start_canvas is not None

    @property
    def free_slots(self) -> int:
        return int((self.state == SlotState.FREE).sum())

    def open(
        self, request: Request, block_length: int, threshold: float, anchored_at_zero: bool
    ) -> int:
        """Put a checked request with resolved block length and threshold into a free slot."""
        slot = int(np.argmax(self.state == SlotState.FREE))
        assert self.state[slot] == SlotState.FREE, "no free slot"
        self._widen(block_length)
        prompt_length = len(request.input_ids)
        is_autoregressive = request.decoding.mode is Mode.AUTOREGRESSIVE
        tail = prompt_length % block_length if anchored_at_zero and not is_autoregressive else 0

        self.uid[slot] = request.uid
        self.priority[slot] = request.priority
        self.pins[slot] = Pins.of(request.pinned, prompt_length)
        self.arrival[slot] = self._arrivals
        self._arrivals += 1
        self.prompt_length[slot] = prompt_length
        self.make_room(prompt_length + request.max_tokens + block_length)
        self.sequences[slot, :prompt_length] = request.input_ids
        self.written[slot] = 0
        self.final[slot] = prompt_length - tail
        is_aligned = anchored_at_zero and not is_autoregressive
        self.prefill_granule[slot] = block_length if is_aligned else 1
        self.is_autoregressive[slot] = is_autoregressive
        self.forwards[slot] = 0
        self.end_position[slot] = prompt_length + request.max_tokens
        self._set_endings(slot, request)
        self._set_choices(slot, request.sampling, request.decoding, threshold)

        self.full_length[slot] = block_length
        self.block_index[slot] = -1
        self.open_block(slot, prompt_length - tail)
        self.canvas[slot, :tail] = request.input_ids[prompt_length - tail :]
        self.masked[slot, :tail] = False
        self.first_response[slot] = tail
        self.state[slot] = SlotState.PREFILL if self.final[slot] else SlotState.DECODE
        return slot

    def _set_endings(self, slot: int, request: Request) -> None:
        self.eos_ids[slot] = NO_TOKEN
        if not request.ignore_eos and request.eos_ids:
            self.eos_ids[slot, : len(request.eos_ids)] = request.eos_ids
        self.eos_allowed_from[slot] = len(request.input_ids) + request.min_tokens

    def _set_choices(
        self, slot: int, sampling: SamplingParams, decoding: DecodingParams, threshold: float
    ) -> None:
        self._own_limits[slot] = (threshold, decoding.denoise_steps or 0)
        self.is_elastic[slot] = decoding.is_elastic
        self.algorithm[slot] = (*ALGORITHMS, ENTROPY_BOUND).index(decoding.algorithm)
        self.t_min[slot] = decoding.t_min or 0.0
        self.t_max[slot] = decoding.t_max or 0.0
        self.stability_threshold[slot] = decoding.stability_threshold or 0
        self.confidence_threshold[slot] = decoding.confidence_threshold or 0.0
        self.least_accepted[slot] = decoding.num_to_transfer
        self.is_editing[slot] = decoding.editing_threshold is not None
        self.editing_threshold[slot] = decoding.editing_threshold or 0.0
        post = decoding.max_post_steps
        self.max_post_steps[slot] = DEFAULT_POST_STEPS if post is None else post
        self.temperature[slot] = sampling.temperature
        self.top_k[slot] = sampling.top_k
        self.top_p[slot] = sampling.top_p
        self.seed[slot] = sampling.seed

    def open_block(self, slot: int, start: int) -> None:
        """Begin the next block of ``slot`` at absolute position ``start``.

        All of it is open but for pinned places; it holds masks or what ``start_canvas`` says.
        """
        length = int(self.full_length[slot])
        if self._opening.truncates_last and not self.is_autoregressive[slot]:
            length = min(length, int(self.end_position[slot]) - start)
        self.block_length[slot] = length
        self.block_start[slot] = start
        self.block_index[slot] += 1
        self.first_response[slot] = 0
        self.step[slot] = 0
        self.post_steps[slot] = 0
        self.is_unsettled[slot] = self.is_editing[slot]
        self.canvas[slot] = self.mask_token_id
        self.masked[slot] = np.arange(self.masked.shape[1]) < length
        self.log_probs[slot] = 0.0
        self._set_limits(slot)
        if self._opening.start_canvas is not None:
            self.canvas[slot, :length] = self._opening.start_canvas(self, slot)
        pins = self.pins[slot].between(start, start + length)
        places = pins.positions - start
        self.canvas[slot, places] = pins.token_ids
        self.masked[slot, places] = False
        self.pinned[slot] = False
        self.pinned[slot, places] = True

    def _set_limits(self, slot: int) -> None:
        threshold, steps = self._own_limits[slot]
        load_aware = self._opening.load_aware
        if load_aware is not None and self.is_elastic[slot]:
            if self.algorithm[slot] == LOW_CONFIDENCE:
                threshold = load_aware.threshold(threshold, self.pressure)
            steps = load_aware.steps(steps, self.pressure)
        self.threshold[slot], self.schedule_steps[slot] = threshold, steps

    def threshold_used(self, slot: int) -> float | None:
        """Confidence threshold of the open block; None where none decides it."""
        # the decimal that float32 stands for
        threshold = round(float(self.threshold[slot]), 6)
        has_one = self.algorithm[slot] == LOW_CONFIDENCE and not self.is_autoregressive[slot]
        return threshold if has_one and threshold != NO_THRESHOLD else None

    def first_ending(self, slots: Ints) -> Ints:
        """Place of the open blocks from which on an end token counts, a pinned one too."""
        early = self.eos_allowed_from[slots] - self.block_start[slots]
        found: Ints = np.maximum(self.first_response[slots], early)
        return found

    def settle_block(self, slot: int) -> None:
        """The tokens of the open block are final; the next round commits them."""
        start, length = int(self.block_start[slot]), int(self.block_length[slot])
        self.sequences[slot, start : start + length] = self.canvas[slot, :length]
        self.final[slot] = start + length

    def suspend(self, slot: int) -> None:
        """The caches have forgotten ``slot``: what is final of it has to be written again.

        An open canvas is kept, but a random one begins anew, as its signals are gone too.
        """
        self.written[slot] = 0
        if self.has_random_canvases:
            self.block_index[slot] -= 1
            self.open_block(slot, int(self.block_start[slot]))
        if self.final[slot]:
            self.state[slot] = SlotState.PREFILL

    def by_rank(self, slots: Ints) -> Ints:
        """``slots`` by priority, the lowest number first, and then by arrival."""
        ranked: Ints = slots[np.lexsort((self.arrival[slots], self.priority[slots]))]
        return ranked

    def close(self, slot: int) -> None:
        self.state[slot] = SlotState.FREE
        self.final[slot] = self.written[slot] = 0
        self.pins[slot] = NO_PINS

    def make_room(self, length: int) -> None:
        """Hold sequences of ``length`` tokens; grows by doubling."""
        width = self.sequences.shape[1]
        if length > width:
            room = max(length, 2 * width) - width
            self.sequences = np.pad(self.sequences, ((0, 0), (0, room)))

    def _widen(self, block_length: int) -> None:
        extra = block_length - self.canvas.shape[1]
        if extra <= 0:
            return
        columns = ((0, 0), (0, extra))
        self.canvas = np.pad(self.canvas, columns)
        self.masked = np.pad(self.masked, columns)
        self.pinned = np.pad(self.pinned, columns)
        self.log_probs = np.pad(self.log_probs, columns)

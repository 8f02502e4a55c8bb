"""The slot table: everything the scheduler knows of running requests, one array line per slot.

Knows nothing of rounds, results or text.
"""

import math
from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from blockdiff.core import DecodingParams, Mode, Request, SamplingParams
from blockdiff.decoding.acceptance import ALGORITHMS, LOW_CONFIDENCE
from blockdiff.decoding.uniform import ENTROPY_BOUND
from blockdiff.scheduler.arrays import NO_TOKEN, Ints
from blockdiff.scheduler.load import LoadAware
from blockdiff.scheduler.pins import NO_PINS, Pins
from blockdiff.scheduler.queries import SlotQueries
from blockdiff.scheduler.token_pairs import NO_PAIRS, pairs_of
from blockdiff.scheduler.traces import Traces

DEFAULT_POST_STEPS = 16
# A request rises by one priority whenever so many times all slots have been given to later ones.
PATIENCE = 8


# ids [block length] that the block which a slot has just opened begins with
StartCanvas = Callable[["SlotTable", int], Ints]


class BlockOpening(NamedTuple):
    """What an engine's blocks have in common when they open."""

    start_canvas: StartCanvas | None = None  # None: they begin as masks
    truncates_last: bool = False
    load_aware: LoadAware | None = None
    never: tuple[int, ...] = ()  # ids that no output holds


class SlotState(IntEnum):
    FREE = 0
    PREFILL = 1
    DECODE = 2


class SlotTable(SlotQueries):
    """State of ``num_slots`` requests. ``open`` fills a slot, ``close`` empties it."""

    def __init__(self, num_slots: int, mask_token_id: int, opening: BlockOpening) -> None:
        super().__init__(num_slots)
        self._opening = opening
        self._arrivals = 0
        self.pressure = 0.0
        self.mask_token_id = mask_token_id
        self.traces = Traces(num_slots)

    @property
    def has_random_canvases(self) -> bool:
        """Whether canvases begin as random tokens; a preview then decides all of a canvas."""
        return self._opening.start_canvas is not None

    @property
    def never(self) -> tuple[int, ...]:
        """Ids that no output holds."""
        return self._opening.never

    @property
    def free_slots(self) -> int:
        return int((self.state == SlotState.FREE).sum())

    def open(
        self, request: Request, block_length: int, threshold: float, anchored_at_zero: bool
    ) -> int:
        """Put a checked request with resolved block length and threshold into a free slot."""
        slot = int(np.argmax(self.state == SlotState.FREE))
        assert self.state[slot] == SlotState.FREE, "no free slot"
        self.widen(block_length)
        prompt_length = len(request.input_ids)
        is_autoregressive = request.decoding.mode is Mode.AUTOREGRESSIVE
        tail = prompt_length % block_length if anchored_at_zero and not is_autoregressive else 0

        self.uid[slot] = request.uid
        self.deadline[slot] = math.inf if request.deadline is None else request.deadline
        self.priority[slot] = request.priority
        self.pins[slot] = Pins.of(request.pinned, prompt_length) if request.pinned else NO_PINS
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
        self._set_adjustments(slot, request)
        self._set_wishes(slot, request)

        self.full_length[slot] = block_length
        self.block_index[slot] = -1
        self.open_blocks(np.array([slot]), np.array([prompt_length - tail]))
        self.canvas[slot, :tail] = request.input_ids[prompt_length - tail :]
        self.masked[slot, :tail] = False
        self.first_response[slot] = tail
        self.state[slot] = SlotState.PREFILL if self.final[slot] else SlotState.DECODE
        return slot

    def _set_wishes(self, slot: int, request: Request) -> None:
        self.wants_canvases[slot] = request.wants_canvases
        self.wants_steps[slot] = request.wants_step_map
        self.num_top[slot] = request.num_top_log_probs
        self.is_traced[slot] = request.wants_step_map or request.num_top_log_probs > 0

    def _set_endings(self, slot: int, request: Request) -> None:
        self.eos_ids[slot] = NO_TOKEN
        if request.eos_ids:
            self.eos_ids[slot, : len(request.eos_ids)] = request.eos_ids
        self.eos_allowed_from[slot] = len(request.input_ids) + request.min_tokens

    def _set_choices(
        self, slot: int, sampling: SamplingParams, decoding: DecodingParams, threshold: float
    ) -> None:
        self.own_limits[slot] = (threshold, decoding.denoise_steps or 0)
        self.threshold[slot], self.schedule_steps[slot] = self.own_limits[slot]
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
        self.min_p[slot] = sampling.min_p
        self.seed[slot] = sampling.seed

    def _set_adjustments(self, slot: int, request: Request) -> None:
        sampling = request.sampling
        self.pairs[slot] = pairs_of(request)
        self.is_adjusted[slot] = self.pairs[slot] is not NO_PAIRS
        self.is_counted[slot] = self.pairs[slot].is_counted
        self.repetition_penalty[slot] = sampling.repetition_penalty
        self.presence_penalty[slot] = sampling.presence_penalty
        self.frequency_penalty[slot] = sampling.frequency_penalty

    def open_blocks(self, slots: Ints, starts: Ints) -> None:
        """Begin the next blocks of ``slots`` [N] at absolute positions ``starts`` [N].

        All of them is open but for pinned places; they hold masks or what ``start_canvas`` says.
        """
        lengths = self.full_length[slots]
        if self._opening.truncates_last:
            rest = self.end_position[slots] - starts
            is_short = (rest < lengths) & ~self.is_autoregressive[slots]
            lengths = np.where(is_short, rest, lengths)
        self.block_length[slots] = lengths
        self.block_start[slots] = starts
        self.block_index[slots] += 1
        for counts in (self.first_response, self.step, self.earlier_steps, self.post_steps):
            counts[slots] = 0
        self.is_unsettled[slots] = self.is_editing[slots]
        self.canvas[slots] = self.mask_token_id
        self.masked[slots] = np.arange(self.masked.shape[1]) < lengths[:, None]
        self.log_probs[slots] = 0.0
        self.pinned[slots] = False
        if self.is_traced[slots].any():
            self.traces.forget(slots)
        if self._opening.load_aware is not None:
            self._give_way(slots[self.is_elastic[slots]], self._opening.load_aware)
        for slot in slots.tolist():
            if self._opening.start_canvas is not None:
                length = int(self.block_length[slot])
                self.canvas[slot, :length] = self._opening.start_canvas(self, slot)
            if self.pins[slot] is not NO_PINS:
                self.pin(slot)

    def pin(self, slot: int) -> None:
        """Give the places of the open block of ``slot`` what ``pins`` says."""
        start = int(self.block_start[slot])
        pins = self.pins[slot].between(start, start + int(self.block_length[slot]))
        places = pins.positions - start
        self.canvas[slot, places] = pins.token_ids
        self.log_probs[slot, places] = pins.log_probs
        self.masked[slot, places] = False
        self.pinned[slot, places] = True

    def _give_way(self, slots: Ints, load_aware: LoadAware) -> None:
        for slot in slots.tolist():
            threshold, steps = self.own_limits[slot]
            if self.algorithm[slot] == LOW_CONFIDENCE:
                self.threshold[slot] = load_aware.threshold(threshold, self.pressure)
            self.schedule_steps[slot] = load_aware.steps(steps, self.pressure)

    def settle_blocks(self, slots: Ints) -> None:
        """The tokens of the open blocks of ``slots`` [N] are final; the next round commits them."""
        starts, lengths = self.block_start[slots], self.block_length[slots]
        lines, places = np.nonzero(np.arange(self.canvas.shape[1]) < lengths[:, None])
        owners = slots[lines]
        self.sequences[owners, starts[lines] + places] = self.canvas[owners, places]
        self.final[slots] = starts + lengths

    def suspend(self, slot: int) -> None:
        """The caches have forgotten ``slot``: what is final of it has to be written again.

        An open canvas is kept, but a random one begins anew, as its signals are gone too.
        """
        self.written[slot] = 0
        if self.has_random_canvases:
            seen = int(self.step[slot]) if self.is_constrained[slot] else 0
            self._draw_again(slot, seen)
        if self.final[slot]:
            self.state[slot] = SlotState.PREFILL

    def _draw_again(self, slot: int, steps: int) -> None:
        """Begin the random canvas of ``slot`` anew, but for what is given or certified of it.

        ``steps``: how many of the last attempt count.
        """
        kept = 0
        if self.is_constrained[slot]:
            kept = max(int(self.certified[slot] - self.block_start[slot]), 0)
        given = (self.canvas[slot, :kept].copy(), self.log_probs[slot, :kept].copy())
        steps += int(self.earlier_steps[slot])
        trace = self.traces.copy(slot, kept)
        self.block_index[slot] -= 1
        self.open_blocks(np.array([slot]), self.block_start[[slot]])
        self.traces.restore(slot, trace)
        self.earlier_steps[slot] = steps
        self.canvas[slot, :kept], self.log_probs[slot, :kept] = given
        self.masked[slot, :kept] = False
        self.pinned[slot, :kept] = True

    def begin_canvas_again(self, slot: int, place: int) -> None:
        """Denoise the random canvas of ``slot`` anew from ``place`` on; what is before is given."""
        assert self.certified[slot] == self.block_start[slot] + place, "certified up to there"
        self._draw_again(slot, int(self.step[slot]))

    def reopen(self, slot: int, place: int) -> None:
        """Open the block of ``slot`` again from ``place`` on; what ``pins`` says now is given.

        Random canvases change as a whole: they begin anew, with what stands before ``place`` given.
        """
        if self.has_random_canvases:
            first, start = int(self.first_response[slot]), int(self.block_start[slot])
            kept = slice(first, place)
            chosen = self.canvas[slot, kept].copy(), self.log_probs[slot, kept].copy()
            self.pins[slot] = self.pins[slot].add(Pins.at(start + np.arange(first, place), *chosen))
            self._draw_again(slot, int(self.step[slot]))
            return
        behind = slice(place, int(self.block_length[slot]))
        self.canvas[slot, behind] = self.mask_token_id
        self.masked[slot, behind] = True
        self.pinned[slot, behind] = False
        self.log_probs[slot, behind] = 0.0
        self.is_unsettled[slot] = self.is_editing[slot]
        self.post_steps[slot] = 0
        self.traces.forget_behind(slot, place)
        self.pin(slot)

    def urgency(self, slots: Ints) -> Ints:
        """Priorities [N] of ``slots`` [N], lower for those that have been passed for long."""
        passed = self._arrivals - self.arrival[slots]
        current: Ints = self.priority[slots] - passed // (PATIENCE * self.num_slots)
        return current

    def by_rank(self, slots: Ints) -> Ints:
        """``slots`` by urgency, the lowest number first, and then by arrival."""
        ranked: Ints = slots[np.lexsort((self.arrival[slots], self.urgency(slots)))]
        return ranked

    def close(self, slot: int) -> None:
        self.state[slot] = SlotState.FREE
        self.deadline[slot] = math.inf
        self.final[slot] = self.written[slot] = 0
        self.pins[slot] = NO_PINS
        self.pairs[slot] = NO_PAIRS
        self.is_adjusted[slot] = self.is_counted[slot] = self.is_traced[slot] = False
        self.num_top[slot] = 0

"""What is known of each slot, one array line per slot: plain arrays that grow where they must.

Whether a position is prompt, masked or accepted is a flag of the position (``masked``,
``first_response``), never a property of the token id stored there. Knows nothing of what the
numbers are for.
"""

import math

import numpy as np
import numpy.typing as npt

from blockdiff.scheduler.pins import NO_PINS, Pins
from blockdiff.scheduler.token_pairs import NO_PAIRS, TokenPairs

Ints = npt.NDArray[np.int64]
Tokens = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]

MAX_EOS_IDS = 16
NO_TOKEN = -1
FIRST_WIDTH = 8


class SlotArrays:
    """Arrays of ``num_slots`` lines."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._make_requests()
        self._make_choices()
        self._make_blocks()
        # Rounds by kind: prefill, preview, commit, fused commit.
        self.forwards: Ints = np.zeros((num_slots, 4), np.int64)

    def _ints(self) -> Ints:
        return np.zeros(self.num_slots, np.int64)

    def _make_requests(self) -> None:
        self.state = self._ints()
        self.uid = self._ints()
        self.has_stops: Flags = np.zeros(self.num_slots, np.bool_)
        self.wants_canvases: Flags = np.zeros(self.num_slots, np.bool_)
        # time.monotonic() seconds
        self.deadline: npt.NDArray[np.float64] = np.full(self.num_slots, math.inf)
        self.priority = self._ints()
        self.pins: list[Pins] = [NO_PINS] * self.num_slots
        self.arrival = self._ints()
        # Whether a request has a constraint, and the position up to which that has taken tokens.
        self.is_constrained: Flags = np.zeros(self.num_slots, np.bool_)
        self.certified = self._ints()
        self.prompt_length = self._ints()
        self.prefill_granule = self._ints()
        # Tokens by position: the first ``final`` are, and the caches hold the first ``written``.
        self.sequences: Tokens = np.zeros((self.num_slots, FIRST_WIDTH), np.int32)
        self.final = self._ints()
        self.written = self._ints()

    def _make_choices(self) -> None:
        self.is_autoregressive: Flags = np.zeros(self.num_slots, np.bool_)
        self.end_position = self._ints()
        self.eos_allowed_from = self._ints()
        self.eos_ids: Ints = np.full((self.num_slots, MAX_EOS_IDS), NO_TOKEN, np.int64)
        self.own_limits: list[tuple[float, int]] = [(0.0, 0)] * self.num_slots
        self.is_elastic: Flags = np.zeros(self.num_slots, np.bool_)
        self.schedule_steps = self._ints()
        self.threshold: Floats = np.zeros(self.num_slots, np.float32)
        self.algorithm = self._ints()
        self.least_accepted = self._ints()
        self.is_editing: Flags = np.zeros(self.num_slots, np.bool_)
        self.editing_threshold: Floats = np.zeros(self.num_slots, np.float32)
        self.max_post_steps = self._ints()
        # For canvases that start as random tokens.
        self.t_min: Floats = np.zeros(self.num_slots, np.float32)
        self.t_max: Floats = np.zeros(self.num_slots, np.float32)
        self.stability_threshold = self._ints()
        self.confidence_threshold: Floats = np.zeros(self.num_slots, np.float32)
        self.temperature: Floats = np.zeros(self.num_slots, np.float32)
        self.top_k = self._ints()
        self.top_p: Floats = np.ones(self.num_slots, np.float32)
        self.min_p: Floats = np.zeros(self.num_slots, np.float32)
        self.seed: npt.NDArray[np.uint64] = np.zeros(self.num_slots, np.uint64)
        # Whether logits are changed before anything is chosen, and by how much.
        self.is_adjusted: Flags = np.zeros(self.num_slots, np.bool_)
        self.is_counted: Flags = np.zeros(self.num_slots, np.bool_)
        self.pairs: list[TokenPairs] = [NO_PAIRS] * self.num_slots
        self.repetition_penalty: Floats = np.ones(self.num_slots, np.float32)
        self.presence_penalty: Floats = np.zeros(self.num_slots, np.float32)
        self.frequency_penalty: Floats = np.zeros(self.num_slots, np.float32)
        # What results tell of each token besides its log prob, if anything.
        self.is_traced: Flags = np.zeros(self.num_slots, np.bool_)
        self.wants_steps: Flags = np.zeros(self.num_slots, np.bool_)
        self.num_top = self._ints()

    def _make_blocks(self) -> None:
        # All blocks of a slot but a truncated last one; the grid of commits.
        self.full_length = self._ints()
        # The open block of each slot.
        self.block_length = self._ints()
        self.block_start = self._ints()
        self.block_index = self._ints()
        self.first_response = self._ints()
        self.step = self._ints()
        # Steps of the open block before it began again.
        self.earlier_steps = self._ints()
        # Previews of the open block that left no place open; whether its tokens may still change.
        self.post_steps = self._ints()
        self.is_unsettled: Flags = np.zeros(self.num_slots, np.bool_)
        self.canvas: Ints = np.zeros((self.num_slots, FIRST_WIDTH), np.int64)
        self.masked: Flags = np.zeros((self.num_slots, FIRST_WIDTH), np.bool_)
        # Places whose tokens the request gave: neither open nor ever changed.
        self.pinned: Flags = np.zeros((self.num_slots, FIRST_WIDTH), np.bool_)
        self.log_probs: Floats = np.zeros((self.num_slots, FIRST_WIDTH), np.float32)

    def make_room(self, length: int) -> None:
        """Hold sequences of ``length`` tokens; grows by doubling."""
        width = self.sequences.shape[1]
        if length > width:
            room = max(length, 2 * width) - width
            self.sequences = np.pad(self.sequences, ((0, 0), (0, room)))

    def widen(self, block_length: int) -> None:
        """Hold blocks of ``block_length``."""
        extra = block_length - self.canvas.shape[1]
        if extra <= 0:
            return
        columns = ((0, 0), (0, extra))
        self.canvas = np.pad(self.canvas, columns)
        self.masked = np.pad(self.masked, columns)
        self.pinned = np.pad(self.pinned, columns)
        self.log_probs = np.pad(self.log_probs, columns)

"""Insert and delete editing of blocks, as LLaDA2.2 decodes: one update of many blocks at once.

Two control tokens, besides MASK, may be predicted at any response place. Writing DELETE at a place
removes it and moves what follows one place to the left, with a MASK at the end. Writing SPLIT keeps
the old token and puts a MASK before it; what no longer fits falls off at the end. Prompt places
never move or change. A MASK of the block's beginning is *original*, wherever it moves, and one
that an edit brought in is *introduced*. An update:

1. The preview's best token at each place, with its probability as confidence. MASK at an original
   mask gives way to the best other token there.
2. Masks that are filled: those above ``threshold``, but at least ``minimum`` + the number of
   introduced ones, so that an original one is among them; without original masks, all.
3. Decided places whose best token is another one, above ``editing_threshold``, are rewritten, and
   may become MASK again.
4. Nothing to write: the block is final as it is.
5. The last update fills every mask and writes the best token that is neither MASK, DELETE nor
   SPLIT. It is the ``max_post_steps``-th update that began without original masks (counted over
   the whole block), at 0 the one that fills the last of them, or, at the latest, update number
   block length + ``max_post_steps`` + 1.
6. If this block's tokens have been the same before an earlier update, the change of lowest
   confidence gets the best token among those never written at that place before.

These are the rules of JointThresholdInDel in sglang 0.5.23, whose ``minimum`` is 1. Ties, which it
leaves to the sort, go to the left here. Works on padded arrays, one line per block; knows nothing
of requests, logits or caches.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]


class Controls(NamedTuple):
    """Ids of the tokens that are never output."""

    mask: int
    delete: int
    split: int


class Canvases(NamedTuple):
    """Blocks between two updates, [G, B] each."""

    tokens: Ints
    log_probs: Floats  # 0 at masks
    is_masked: Flags
    is_original: Flags  # came from a mask of the block's beginning


class Choices(NamedTuple):
    """What a preview says at each place, [G, B] each; log probabilities of the whole softmax."""

    tokens: Ints  # the best of all
    log_probs: Floats
    other_tokens: Ints  # the best but for MASK
    other_log_probs: Floats
    final_tokens: Ints  # the best that is no control token
    final_log_probs: Floats


class Rules(NamedTuple):
    """How each block is decided and how far it is, [G] each."""

    block_length: Ints
    first_response: Ints
    minimum: Ints
    threshold: Floats
    editing_threshold: Floats
    max_post_steps: Ints
    updates: Ints  # before this one
    post_updates: Ints  # of them, those that began without original masks


class Update(NamedTuple):
    """What one update writes, before insertions and deletions are carried out."""

    tokens: Ints  # [G, B]
    log_probs: Floats  # [G, B]
    is_written: Flags  # [G, B]
    is_last: Flags  # [G]
    post_updates: Ints  # [G] with this one

    @property
    def is_settled(self) -> Flags:
        """[G] no token of the block changes any more."""
        return self.is_last | ~self.is_written.any(axis=1)


def choose_update(before: Canvases, choices: Choices, rules: Rules, controls: Controls) -> Update:
    """Steps 1 to 5 of the module's docstring."""
    original = before.is_original & before.is_masked
    has_original = original.any(axis=1)
    post_updates = rules.post_updates + ~has_original
    is_last = np.where(
        rules.max_post_steps > 0, post_updates >= rules.max_post_steps, ~has_original
    )
    is_last |= rules.updates >= rules.block_length + rules.max_post_steps
    is_avoided = original & (choices.tokens == controls.mask) & ~is_last[:, None]
    tokens = np.where(is_avoided, choices.other_tokens, choices.tokens)
    log_probs = np.where(is_avoided, choices.other_log_probs, choices.log_probs)
    confidence = np.exp(log_probs)

    introduced = (before.is_masked & ~original).sum(axis=1)
    above = (before.is_masked & (confidence > rules.threshold[:, None])).sum(axis=1)
    count = np.maximum(above, rules.minimum + introduced)
    filled = _best_places(confidence, before.is_masked, count)
    fills_originals = ~(original & ~filled).any(axis=1)
    is_last |= (rules.max_post_steps == 0) & fills_originals
    filled = np.where((is_last | ~has_original)[:, None], before.is_masked, filled)

    edited = _response(before, rules) & ~before.is_masked & (tokens != before.tokens)
    edited &= confidence > rules.editing_threshold[:, None]
    is_barred = is_last[:, None] & np.isin(tokens, controls)
    return Update(
        tokens=np.where(is_barred, choices.final_tokens, tokens),
        log_probs=np.where(is_barred, choices.final_log_probs, log_probs),
        is_written=filled | edited,
        is_last=is_last,
        post_updates=post_updates,
    )


def places_to_resample(
    before: Canvases, update: Update, block_length: Ints, seen: Ints, is_seen: Flags
) -> Ints:
    """[G] the place whose token must be chosen anew because the block repeats itself, or -1.

    block_length [G]; seen [G, S, B] and is_seen [G, S]: the blocks before their earlier updates.
    """
    is_outside = np.arange(before.tokens.shape[1]) >= block_length[:, None]
    is_same = (seen == before.tokens[:, None]) | is_outside[:, None]
    is_repeated = (is_same.all(axis=2) & is_seen).any(axis=1)
    is_changing = update.is_written & (update.tokens != before.tokens)
    confidence = np.where(is_changing, np.exp(update.log_probs), np.inf)
    is_due = is_repeated & ~update.is_last & is_changing.any(axis=1)
    places: Ints = np.where(is_due, confidence.argmin(axis=1), -1)
    return places


def apply_update(
    before: Canvases, update: Update, block_length: Ints, controls: Controls
) -> Canvases:
    """The blocks after ``update``, with its insertions and deletions; block_length [G]."""
    is_inside = np.arange(before.tokens.shape[1]) < block_length[:, None]
    is_new = update.is_written & (update.tokens != controls.split)
    masked = np.where(is_new, update.tokens == controls.mask, before.is_masked)
    log_probs = np.where(is_new, update.log_probs, before.log_probs)
    moved = (
        np.where(is_new, update.tokens, before.tokens),
        np.where(masked, np.float32(0), log_probs),
        masked,
        before.is_original,
    )
    rows, columns, target = _moves(update, block_length, controls)
    empty = (controls.mask, np.float32(0), True, False)
    arrays: Sequence[npt.NDArray[Any]] = before
    after = []
    for old, values, filler in zip(arrays, moved, empty, strict=True):
        new = np.where(is_inside, np.asarray(filler, old.dtype), old)
        new[rows, target] = values[rows, columns]
        after.append(new)
    return Canvases(*after)


def find_origins(update: Update, block_length: Ints, controls: Controls) -> Ints:
    """[G, B] the place before ``update`` of what is at each place after it, -1 for new masks."""
    places = np.arange(update.tokens.shape[1])
    origins = np.where(places < block_length[:, None], -1, places)
    rows, columns, target = _moves(update, block_length, controls)
    origins[rows, target] = columns
    return origins


def _moves(update: Update, block_length: Ints, controls: Controls) -> tuple[Ints, Ints, Ints]:
    """Rows, places and next places [N] of all that stays in its block."""
    is_inside = np.arange(update.tokens.shape[1]) < block_length[:, None]
    is_split = update.is_written & (update.tokens == controls.split)
    is_deleted = update.is_written & (update.tokens == controls.delete)
    room = np.where(is_inside, 1 + is_split.astype(np.int64) - is_deleted, 0)
    # a split place comes after the mask put before it
    target = room.cumsum(axis=1) - room + is_split
    rows, columns = np.nonzero((room > 0) & (target < block_length[:, None]))
    return rows, columns, target[rows, columns]


def mask_again(canvases: Canvases, is_refused: Flags, mask: int) -> Canvases:
    """The same blocks with introduced masks where ``is_refused`` [G, B]."""
    return Canvases(
        tokens=np.where(is_refused, mask, canvases.tokens),
        log_probs=np.where(is_refused, np.float32(0), canvases.log_probs),
        is_masked=canvases.is_masked | is_refused,
        is_original=canvases.is_original & ~is_refused,
    )


def _response(before: Canvases, rules: Rules) -> Flags:
    places = np.arange(before.tokens.shape[1])
    is_response: Flags = places >= rules.first_response[:, None]
    return is_response & (places < rules.block_length[:, None])


def _best_places(confidence: Floats, is_candidate: Flags, count: Ints) -> Flags:
    """The ``count`` [G] candidates of highest confidence, equal ones from the left."""
    order = np.argsort(np.where(is_candidate, -confidence, np.inf), axis=1, kind="stable")
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.arange(order.shape[1])[None, :], axis=1)
    best: Flags = is_candidate & (rank < count[:, None])
    return best

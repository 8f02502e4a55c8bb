"""Insert and delete editing of one block, one place at a time: the plain twin of the engine's.

Written from the rules alone, with lists, sets and dictionaries. Holds no tests.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from blockdiff.models.base import ModelInfo

from .fakes import Array

# place -> token and its probability
Picks = dict[int, tuple[int, float]]


@dataclass
class Place:
    token: int
    masked: bool
    original: bool
    log_prob: float = 0.0


@dataclass
class EditedBlock:
    """An open block. ``banned(place)`` are the ids that may not be chosen there now."""

    facts: ModelInfo
    prompt: Sequence[int]
    length: int
    threshold: float
    editing_threshold: float
    max_post_steps: int
    least: int = 1
    banned: Callable[[int], Sequence[int]] = lambda place: ()
    post: int = 0
    updates: int = 0
    seen: set[tuple[int, ...]] = field(default_factory=set)
    tried: dict[int, set[int]] = field(default_factory=dict)
    events: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        mask = self.facts.mask_token_id
        self.places = [Place(token, False, False) for token in self.prompt]
        self.places += [Place(mask, True, True) for _ in range(self.length - len(self.prompt))]

    @property
    def tokens(self) -> list[int]:
        return [place.token for place in self.places]

    def best(self, row: Array, place: int, without: Sequence[int]) -> tuple[int, float]:
        """Token and probability of the most likely token that is allowed.

        In float32, as a model's logits are: sharp rows tie at 1, and then the first place counts.
        """
        logits = torch.from_numpy(row.astype(np.float32))
        shares = logits.log_softmax(0).exp()
        order = sorted(range(len(row)), key=lambda token: (-row[token], token))
        barred = {*without, *self.banned(place)}
        token = next(token for token in order if token not in barred)
        return token, float(shares[token])

    def update(self, logits: Array) -> bool:
        """One preview's rows [length, V]; returns whether the block is settled now."""
        mask = self.facts.mask_token_id
        controls = [mask, self.facts.delete_token_id, self.facts.split_token_id]
        originals = [i for i, p in enumerate(self.places) if p.masked and p.original]
        masks = [i for i, p in enumerate(self.places) if p.masked]
        self.updates += 1
        self.post += not originals
        is_last = self.post >= self.max_post_steps if self.max_post_steps else not originals
        is_last = is_last or self.updates > self.length + self.max_post_steps
        picks: Picks = {}
        for i in range(len(self.prompt), self.length):
            picks[i] = self.best(logits[i], i, ())
            if i in originals and picks[i][0] == mask and not is_last:
                picks[i] = self.best(logits[i], i, [mask])
        filled = masks if is_last else self._fill(picks, masks, originals)
        if self.max_post_steps == 0 and all(i in filled for i in originals):
            is_last, filled = True, masks
        edits = [
            i
            for i, (token, share) in picks.items()
            if i not in masks and token != self.tokens[i] and share > self.editing_threshold
        ]
        written = sorted([*filled, *edits])
        if not written:
            return True
        if is_last:
            for i in written:
                if picks[i][0] in controls:
                    self.events.append("scrubbed")
                    picks[i] = self.best(logits[i], i, controls)
        elif tuple(self.tokens) in self.seen:
            changing = [i for i in written if picks[i][0] != self.tokens[i]]
            for i in sorted(changing, key=lambda i: (picks[i][1], i))[:1]:
                without = [*self.tried.get(i, ()), *([mask] if i in originals else [])]
                picks[i] = self.best(logits[i], i, without)
                self.events.append("loop")
        self._rewrite({i: picks[i] for i in written})
        return is_last

    def _fill(self, picks: Picks, masks: list[int], originals: list[int]) -> list[int]:
        """Masks that get their tokens in an update that is not the last."""
        if not originals:
            return masks
        sure = [i for i in masks if picks[i][1] > self.threshold]
        wanted = self.least + len(masks) - len(originals)
        falling = sorted(masks, key=lambda i: (-picks[i][1], i))
        return sure if len(sure) >= wanted else falling[:wanted]

    def _rewrite(self, written: Picks) -> None:
        self.seen.add(tuple(self.tokens))
        for i, (token, _) in written.items():
            self.tried.setdefault(i, set()).add(token)
        mask = self.facts.mask_token_id
        result: list[Place] = []
        for i, old in enumerate(self.places):
            token, share = written.get(i, (old.token, 1.0))
            if i not in written:
                result.append(old)
            elif token == self.facts.delete_token_id:
                self.events.append("deleted")
            elif token == self.facts.split_token_id:
                self.events.append("inserted")
                result += [Place(mask, True, False), old]
            elif token == mask:
                self.events.append("masked" if not old.masked else "kept")
                result.append(Place(mask, True, old.original))
            else:
                result.append(Place(token, False, old.original, float(np.log(share))))
        if len(result) > self.length:
            self.events.append("cut")
        result += [Place(mask, True, False) for _ in range(self.length - len(result))]
        self.places = result[: self.length]
        for i, place in enumerate(self.places):
            if i >= len(self.prompt) and not place.masked and place.token in self.banned(i):
                self.events.append("too early")
                self.places[i] = Place(mask, True, False)


def decode_edited(model: Any, wanted: Any) -> tuple[list[int], list[float], list[int], list[str]]:
    """Whole blocks of one request by itself: output ids cut at the first end, their log
    probabilities, previews per block, and what happened."""
    facts, decoding = model.info, wanted.decoding
    length = decoding.block_length or facts.block_length
    eos = () if wanted.ignore_eos else (wanted.eos_ids or facts.eos_token_ids)
    final, log_probs = list(wanted.input_ids), [0.0] * len(wanted.input_ids)
    prompt, events, steps = len(final), [], []
    allowed_from, limit = prompt + wanted.min_tokens, prompt + wanted.max_tokens
    while len(final) < limit:
        start = len(final) - len(final) % length

        def banned(place: int, start: int = start) -> Sequence[int]:
            return eos if start + place < allowed_from else ()

        block = EditedBlock(
            facts,
            final[start:],
            length,
            decoding.threshold,
            decoding.editing_threshold,
            16 if decoding.max_post_steps is None else decoding.max_post_steps,
            decoding.num_to_transfer,
            banned,
        )
        while not block.update(model.rows(final[:start], block.tokens, True)):
            pass
        steps.append(block.updates)
        events += block.events
        assert not any(place.masked for place in block.places)
        log_probs = log_probs[:start] + [place.log_prob for place in block.places]
        final = final[:start] + block.tokens
        ends = [i for i in range(prompt, min(len(final), limit)) if final[i] in eos]
        if ends:
            limit = ends[0] + 1
    return final[prompt:limit], log_probs[prompt:limit], steps, events

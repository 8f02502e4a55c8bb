"""Small models whose logits are pure functions of what they have been shown, and a plain decoder.

``HashModel`` answers from a hash of everything a row may legally see (committed tokens, canvas,
position), so a wrong commit, position, slot or context changes its answer. ``ScriptModel`` says a
given token with a given confidence at each position. ``decode_alone`` is the definition of the
decoding loop: one request, one position at a time, no batching, no riding commits.
"""

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from blockdiff.core import BlockResult, DecodingParams, Mode, Phase, Request, SamplingParams
from blockdiff.engine import Engine
from blockdiff.models.base import ModelCaches, ModelInfo, OutputHead, RoundBatch
from blockdiff.pages import CachePool, CacheRoom, CacheSizes, CacheWork, make_room

Array = npt.NDArray[Any]
VOCAB, MASK, EOS = 40, 39, 38


def info(**changes: Any) -> ModelInfo:
    facts: dict[str, Any] = {
        "model_type": "fake",
        "vocab_size": VOCAB,
        "block_length": 4,
        "mask_token_id": MASK,
        "eos_token_ids": (EOS,),
        "max_context": 256,
        "default_threshold": 0.9,
        "block_lengths_allowed": (2, 4, 8),
    }
    return ModelInfo(**{**facts, **changes})


NOT_WRITTEN = -1


class FakeCaches:
    """Tokens by page and, as the state of a slot, everything committed in it."""

    def __init__(self, room: CacheRoom) -> None:
        self.room = room
        self.pages = np.full((room.pool.pages, room.pool.page_length), NOT_WRITTEN)
        self.is_copy = np.zeros(room.pool.pages, np.bool_)
        self.states: list[tuple[int, ...] | None] = [None] * room.lines

    def prepare(self, work: CacheWork) -> None:
        self.pages[work.copy_to] = self.pages[work.copy_from]
        self.is_copy[work.copy_to] = True
        self.is_copy[work.cleared] = False
        self.pages[work.cleared] = NOT_WRITTEN
        for slot in work.reset_slots.tolist():
            self.states[slot] = ()
        for source, target in zip(work.restore_from, work.restore_to, strict=True):
            self.states[target] = self.states[source]

    def read(self, pages: npt.NDArray[np.int64], length: int) -> list[int]:
        return [int(token) for token in self.pages[pages].ravel()[:length]]

    def write(self, pages: npt.NDArray[np.int64], start: int, tokens: Sequence[int]) -> None:
        places = np.arange(start, start + len(tokens))
        size = self.pages.shape[1]
        assert len(tokens) + start <= self.room.max_context, "cache overrun"
        where = (pages[places // size], places % size)
        is_free = (self.pages[where] == NOT_WRITTEN) | self.is_copy[where[0]]
        assert is_free.all(), "a page was given out with old rows in it"
        self.pages[where] = tokens


class FakeModel:
    """Checks the rules of a round and leaves the logits to ``rows``. Hidden rows are logits."""

    state_bytes = 8

    def __init__(self, facts: ModelInfo | None = None) -> None:
        self.info = facts or info()
        self.device = torch.device("cpu")
        self.rounds: list[list[tuple[Phase, int, int]]] = []
        self.before_round: Callable[[int], None] = lambda number: None
        self.output_head = OutputHead(torch.eye(self.info.vocab_size), None)

    def rows(self, prefix: Sequence[int], seen: Sequence[int], is_preview: bool) -> Array:
        """Logits [len(seen), V] of ``seen`` after the committed ``prefix``."""
        raise NotImplementedError

    def new_caches(
        self, num_slots: int, max_context: int, pool: CachePool | None = None
    ) -> ModelCaches:
        return FakeCaches(make_room(num_slots, max_context, self.info.block_length, pool))

    def cache_sizes(self, page_length: int, max_context: int | None = None) -> CacheSizes:
        return CacheSizes(page_bytes=page_length, state_bytes=self.state_bytes)

    def head(self, hidden: Tensor) -> Tensor:
        return hidden.clone()

    def forward(self, batch: RoundBatch, caches: ModelCaches) -> Tensor:
        return self.head(self.hidden(batch, caches))

    def check(self) -> None:
        pass

    def hidden(self, batch: RoundBatch, caches: ModelCaches) -> Tensor:
        assert isinstance(caches, FakeCaches)
        self.before_round(len(self.rounds))
        starts = batch.segment_starts.tolist()
        answers: list[Array] = []
        self.rounds.append([])
        assert batch.pages is not None and batch.snapshots is not None, "the engine names them"
        phases = [Phase(phase) for phase in batch.phases.tolist()]
        assert phases == sorted(phases, key=lambda phase: phase is Phase.PREVIEW), "previews last"
        for number, (phase, slot, context) in enumerate(
            zip(phases, batch.slots.tolist(), batch.contexts.tolist(), strict=True)
        ):
            rows = slice(starts[number], starts[number + 1])
            seen = batch.token_ids[rows].tolist()
            pages = batch.pages[number]
            prefix = caches.read(pages, context)
            assert NOT_WRITTEN not in prefix, "context is not what is committed"
            if self.state_bytes:
                assert caches.states[slot] == tuple(prefix), "the state is of other tokens"
            assert batch.positions[rows].tolist() == list(range(context, context + len(seen)))
            self.rounds[-1].append((phase, slot, len(seen)))
            is_preview = phase is Phase.PREVIEW
            answers.append(self.rows(prefix, seen, is_preview))
            if not is_preview:
                caches.write(pages, context, seen)
                caches.states[slot] = (*prefix, *seen)
                if batch.snapshots[number] >= 0:
                    caches.states[int(batch.snapshots[number])] = caches.states[slot]
        flat = np.concatenate(answers)[batch.logit_rows]
        return torch.from_numpy(flat.astype(np.float32)).reshape(-1, self.info.vocab_size)


class HashModel(FakeModel):
    """Random-looking logits, some of them sharp, from everything a row may see."""

    def rows(self, prefix: Sequence[int], seen: Sequence[int], is_preview: bool) -> Array:
        answers = []
        for place in range(len(seen)):
            visible = seen if is_preview else seen[: place + 1]
            content = repr((list(prefix), list(visible)) if is_preview else [*prefix, *visible])
            key = zlib.crc32(f"{content} {len(prefix) + place} {is_preview}".encode())
            generator = np.random.default_rng(key)
            answers.append(generator.normal(size=self.info.vocab_size) * generator.uniform(0.5, 6))
        return np.array(answers)


class ScriptModel(FakeModel):
    """At position p says token ``script[p]`` with confidence ``confidence(p)``."""

    def __init__(
        self,
        script: Sequence[int],
        confidence: Callable[[int], float] = lambda position: 0.99,
        facts: ModelInfo | None = None,
    ) -> None:
        super().__init__(facts)
        self.script = list(script)
        self.confidence = confidence

    def rows(self, prefix: Sequence[int], seen: Sequence[int], is_preview: bool) -> Array:
        count = self.info.vocab_size
        answers = np.zeros((len(seen), count))
        for place in range(len(seen)):
            position = len(prefix) + place + (0 if is_preview else 1)
            sure = self.confidence(position)
            token = self.script[position % len(self.script)]
            answers[place] = np.log((1 - sure) / (count - 1))
            answers[place, token] = np.log(sure)
        return answers


def request(uid: int = 1, prompt: Sequence[int] = (1, 2, 3), **fields: Any) -> Request:
    """A request; decoding and sampling fields may be given flat."""
    decoding = {k: fields.pop(k) for k in list(fields) if k in DecodingParams.__annotations__}
    sampling = {k: fields.pop(k) for k in list(fields) if k in SamplingParams.__annotations__}
    fields.setdefault("max_tokens", 8)
    return Request(
        uid=uid,
        input_ids=tuple(prompt),
        decoding=DecodingParams(**decoding),
        sampling=SamplingParams(**sampling),
        **fields,
    )


def softmax(row: Array) -> Array:
    weights: Array = np.exp(row - row.max())
    total: Array = weights / weights.sum()
    return total


def decode_alone(
    model: FakeModel, wanted: Request, truncates: bool = False
) -> tuple[list[int], list[int]]:
    """Greedy output ids and denoise steps per block, straight from the rules.

    ``truncates``: the last block ends where ``max_tokens`` does.
    """
    facts = model.info
    eos = facts.eos_token_ids if wanted.eos_ids is None else wanted.eos_ids
    prompt = list(wanted.input_ids)
    given = {len(prompt) + place: token for place, token in wanted.pinned}
    output: list[int] = []
    steps_per_block: list[int] = []
    is_single = wanted.decoding.mode is Mode.AUTOREGRESSIVE
    length = wanted.decoding.block_length or facts.block_length

    def choose(row: Array, position: int) -> tuple[int, float]:
        probabilities = softmax(row.astype(np.float32).astype(np.float64))
        allowed = probabilities.copy()
        allowed[facts.mask_token_id] = -1
        if position - len(prompt) < wanted.min_tokens and not wanted.ignore_eos:
            allowed[list(eos)] = -1
        return int(allowed.argmax()), float(probabilities[allowed.argmax()])

    while len(output) < wanted.max_tokens:
        if is_single:
            final = [*prompt, *output]
            token, _ = choose(model.rows([], final, False)[-1], len(final))
            block = [token]
        else:
            final = [*prompt, *output]
            start = len(final) - len(final) % length if facts.block_anchor == "zero" else len(final)
            fixed = {**given, **dict(enumerate(final[start:], start))}
            end = len(prompt) + wanted.max_tokens if truncates else start + length
            positions = range(start, min(start + length, end))
            block, steps = _decode_block(model, wanted, final[:start], positions, fixed, choose)
            block = block[len(final) - start :]
            steps_per_block.append(steps)
        for token in block[: wanted.max_tokens - len(output)]:
            output.append(token)
            if token in eos and not wanted.ignore_eos and len(output) > wanted.min_tokens:
                return output, steps_per_block
    return output, steps_per_block


def _decode_block(
    model: FakeModel,
    wanted: Request,
    prefix: list[int],
    positions: range,
    fixed: dict[int, int],
    choose: Callable[[Array, int], tuple[int, float]],
) -> tuple[list[int], int]:
    """Denoise one whole block, without any early end; ``fixed`` tokens by position."""
    decoding = wanted.decoding
    canvas = [fixed.get(position, model.info.mask_token_id) for position in positions]
    open_places = [place for place, position in enumerate(positions) if position not in fixed]
    # A schedule shares out all places but those that the request has pinned.
    prompt_length = len(wanted.input_ids)
    shared = len([p for p in positions if p not in fixed or p < prompt_length])
    threshold = decoding.threshold
    if threshold is None:
        threshold = 2.0 if decoding.denoise_steps else model.info.default_threshold
    step = 0
    while open_places:
        logits = model.rows(prefix, canvas, True)
        picks = {place: choose(logits[place], len(prefix) + place) for place in open_places}
        sure = [place for place in open_places if picks[place][1] > threshold]
        least = 1
        if decoding.denoise_steps:
            share, extra = divmod(shared, decoding.denoise_steps)
            least = max(share + (step < extra), 1)
        if len(sure) < least:
            sure = sorted(open_places, key=lambda place: -picks[place][1])[:least]
        for place in sure:
            canvas[place] = picks[place][0]
        open_places = [place for place in open_places if place not in sure]
        step += 1
    return canvas, step


def run(engine: Engine, requests: Sequence[Request]) -> dict[int, list[BlockResult]]:
    """All results by uid; requests are added as slots become free."""
    waiting = list(requests)
    results: dict[int, list[BlockResult]] = {wanted.uid: [] for wanted in requests}
    while waiting or engine.has_work:
        while waiting and engine.free_slots:
            engine.add_request(waiting.pop(0))
        for result in engine.step():
            results[result.request_uid].append(result)
    return results


def ids(blocks: Sequence[BlockResult]) -> list[int]:
    """The output of one request; checks that exactly the last result is final."""
    assert [block.is_final for block in blocks] == [False] * (len(blocks) - 1) + [True]
    assert blocks[-1].error is None, blocks[-1].error
    assert all(len(block.token_ids) == len(block.log_probs) for block in blocks)
    return [token for block in blocks for token in block.token_ids]


class LetterCodec:
    """Token n is the n-th letter; enough of a tokenizer for stop strings."""

    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLM."

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        return "".join(self.letters[token] for token in ids)

"""Turn samples into packed training batches. Knows tokenizer and template, not the model."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from demo import tasks
from demo.streams import BLOCK
from demo.tokenizer import token_id

CHUNKS = 8  # clean chunks of a sequence
NOISY = 4  # noisy blocks of a sequence
IGNORE = -100


@dataclass(frozen=True)
class Stage:
    """Part of the curriculum, up to and including batch `last`."""

    last: float
    shares: tuple[float, ...]  # of the tasks, in the order of tasks.TASKS
    largest_chinese: int
    masks_are_uniform: bool  # see Packer.masks


FIRST = (0.26, 0.18, 0.13, 0.07, 0.11, 0.06, 0.11, 0.08)
LATER = (0.30, 0.24, 0.05, 0.03, 0.14, 0.04, 0.15, 0.05)
LAST = (0.28, 0.22, 0.05, 0.03, 0.18, 0.04, 0.15, 0.05)
STAGES = (
    Stage(1000, FIRST, largest_chinese=20, masks_are_uniform=True),
    Stage(2000, FIRST, largest_chinese=20, masks_are_uniform=False),
    Stage(2500, LATER, largest_chinese=20, masks_are_uniform=False),
    Stage(float("inf"), LAST, largest_chinese=10, masks_are_uniform=False),
)


@dataclass
class Batch:
    """One training step; sequences N, clean tokens T = CHUNKS * BLOCK, noisy blocks NOISY."""

    clean: Tensor  # [N, T] int64
    real: Tensor  # [N, T] float32
    sample: Tensor  # [N, CHUNKS] int64
    chunk: Tensor  # [N, NOISY] int64
    noisy: Tensor  # [N, NOISY, BLOCK] int64
    clean_target: Tensor  # [N, T] next token of answer rows, else IGNORE
    noisy_target: Tensor  # [N, NOISY, BLOCK] token of masked rows, else IGNORE
    noisy_weight: Tensor  # [N, NOISY, BLOCK] float32

    def tensors(self) -> list[Tensor]:
        return [getattr(self, field.name) for field in fields(self)]


class Packer:
    """Endless packed batches from a seeded stream of samples."""

    def __init__(self, tokenizer: Tokenizer, seed: int, sequences: int) -> None:
        template = (Path(__file__).parent / "chat_template.jinja").read_text(encoding="utf-8")
        self.template = jinja2.Environment().from_string(template)
        self.tokenizer = tokenizer
        self.rng = random.Random(seed)
        self.noise = np.random.default_rng(seed)
        self.sequences = sequences
        self.samples_seen = 0
        self.batches = 0
        self.end, self.fill, self.mask = (
            token_id(tokenizer, token) for token in ("<|im_end|>", "<|endoftext|>", "<|mask|>")
        )
        self.waiting: list[tuple[list[int], list[int]]] = []

    @property
    def stage(self) -> Stage:
        return next(stage for stage in STAGES if self.batches <= stage.last)

    def prompt(self, sample: tasks.Sample) -> str:
        return self.template.render(
            messages=sample.messages(),
            tools=sample.tool_specs(),
            enable_thinking=sample.enable_thinking,
            add_generation_prompt=True,
        )

    def draw(self) -> tuple[list[int], list[int]]:
        """Prompt ids and answer ids (with the end token) of a new sample."""
        self.samples_seen += 1
        sample = tasks.generate(self.rng, self.stage.shares, self.stage.largest_chinese)
        answer = sample.expected
        if sample.enable_thinking and self.rng.random() < 0.08:
            # the answer alone, as if thinking were off
            sample = tasks.Sample(sample.task, sample.user, answer)
            answer = answer.split("</think>\n\n")[1]
        elif not sample.enable_thinking and self.rng.random() < 0.04:
            # nothing to think about
            sample = tasks.Sample(sample.task, sample.user, answer, sample.tools, True)
            answer = "</think>\n\n" + answer
        prompt = self.tokenizer.encode(self.prompt(sample)).ids
        return prompt, [*self.tokenizer.encode(answer).ids, self.end]

    def take(self, free: int) -> tuple[list[int], list[int]] | None:
        """A waiting or new sample that fits into `free` chunks, or None if the gap stays."""
        for i, (prompt, answer) in enumerate(self.waiting):
            if chunks_of(prompt) + chunks_of(answer) <= free:
                return self.waiting.pop(i)
        while len(self.waiting) < 16:
            prompt, answer = self.draw()
            if chunks_of(prompt) + chunks_of(answer) <= free:
                return prompt, answer
            if chunks_of(prompt) + chunks_of(answer) <= CHUNKS:
                self.waiting.append((prompt, answer))
        return None

    def sequence(self) -> dict[str, Any]:
        length = CHUNKS * BLOCK
        clean = np.full(length, self.fill)
        real = np.zeros(length, np.float32)
        target = np.full(length, IGNORE)
        sample = np.full(CHUNKS, -1)
        answers: list[tuple[int, int]] = []  # chunk, answer tokens in it
        start = 0
        while start < CHUNKS and (taken := self.take(CHUNKS - start)):
            prompt, answer = taken
            boundary = start + chunks_of(prompt)
            first, last = boundary * BLOCK - len(prompt), boundary * BLOCK + len(answer)
            clean[first:last] = prompt + answer
            real[first:last] = 1
            target[boundary * BLOCK - 1 : last - 1] = answer
            stop = boundary + chunks_of(answer)
            sample[start:stop] = start
            for i in range(boundary, stop):
                answers.append((i, min(last - i * BLOCK, BLOCK)))
            start = stop
        sample[start:] = CHUNKS
        self.rng.shuffle(answers)
        extra = [self.rng.choice(answers) for _ in range(NOISY)]
        picks = (answers + extra)[:NOISY]
        return {
            "clean": clean,
            "real": real,
            "target": target,
            "sample": sample,
            "picks": picks,
        }

    def batch(self) -> Batch:
        self.batches += 1
        rows = [self.sequence() for _ in range(self.sequences)]
        clean = np.stack([row["clean"] for row in rows])
        chunk = np.array([[i for i, _ in row["picks"]] for row in rows])
        held = np.array([[size for _, size in row["picks"]] for row in rows])
        blocks = clean.reshape(len(rows), CHUNKS, BLOCK)
        tokens = np.take_along_axis(blocks, chunk[:, :, None], 1)
        masked = self.masks(held)
        weight = np.where(np.arange(BLOCK) < held[:, :, None], 1.0, 0.2).astype(np.float32)
        return Batch(
            clean=torch.from_numpy(clean),
            real=torch.from_numpy(np.stack([row["real"] for row in rows])),
            sample=torch.from_numpy(np.stack([row["sample"] for row in rows])),
            chunk=torch.from_numpy(chunk),
            noisy=torch.from_numpy(np.where(masked, self.mask, tokens)),
            clean_target=torch.from_numpy(np.stack([row["target"] for row in rows])),
            noisy_target=torch.from_numpy(np.where(masked, tokens, IGNORE)),
            noisy_weight=torch.from_numpy(weight * masked),
        )

    def masks(self, held: np.ndarray) -> np.ndarray:
        """Which positions of each noisy block are masked; held [N, NOISY] answer tokens in it.

        All of them in 30 % of the blocks, else a uniform number at random places. Later 35 % of
        the blocks have the filling after the end (sometimes with the end token) given, as it is in
        decoding after the first confident step.
        """
        if self.stage.masks_are_uniform:
            rank = self.noise.random((*held.shape, BLOCK)).argsort(-1)
            count = self.noise.integers(1, BLOCK + 1, held.shape)
            count = np.where(self.noise.random(held.shape) < 0.3, BLOCK, count)
            return rank < count[:, :, None]
        given = self.noise.random(held.shape) < 0.35
        kept = np.where(given, held - self.noise.integers(0, 2, held.shape), BLOCK)
        kept = np.maximum(kept, 1)
        after = np.arange(BLOCK) >= kept[:, :, None]
        rank = (self.noise.random((*held.shape, BLOCK)) + after).argsort(-1).argsort(-1)
        count = 1 + (self.noise.random(held.shape) * kept).astype(int)
        count = np.where(self.noise.random(held.shape) < 0.3, kept, count)
        return rank < count[:, :, None]

    def __iter__(self) -> Iterator[Batch]:
        while True:
            yield self.batch()


def chunks_of(ids: list[int]) -> int:
    return -(-len(ids) // BLOCK)

"""The demo tasks: exact answers, held-out prompts, tokens that fit the training layout."""

import json
import random

import pytest

from demo import tasks
from demo.data import BLOCK, CHUNKS, IGNORE, LAST, Packer
from demo.tokenizer import build_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer()


@pytest.mark.parametrize("task", tasks.TASKS)
def test_answers_are_right(task: str) -> None:
    rng = random.Random(5)
    for _ in range(300):
        sample = tasks.TASKS[task](rng)
        words = sample.user.split()
        if task == "sort":
            numbers = [int(word) for word in words[1:]]
            assert 3 <= len(numbers) <= 6
            assert [int(word) for word in sample.expected.split()] == sorted(numbers)
        elif task == "add":
            thoughts, answer = sample.expected.split("\n</think>\n\n")
            a, b = map(int, sample.user.split("+"))
            assert int(answer) == a + b
            for line in thoughts.splitlines():
                left, right = line.split("=")
                assert sum(map(int, left.split("+"))) == int(right)
        elif task == "reverse":
            assert sample.expected == words[1][::-1]
        elif task == "upper":
            assert sample.expected == words[1].upper()
        elif task == "tool_call":
            call = json.loads(sample.expected[len("<tool_call>\n") : -len("\n</tool_call>")])
            assert call["name"] in sample.tools
            assert 2 <= len(sample.tools) <= 3
            assert call["arguments"]["city"] in sample.user
        elif task == "python":
            scope: dict = {}
            exec(sample.expected.strip("`").removeprefix("python\n"), scope)
            sign = {"adds": 12, "subtracts": 4, "multiplies": 32, "divides": 2}[words[6]]
            assert scope[words[4]](8, 4) == sign
        elif task == "copy":
            assert sample.user == "copy " + sample.expected


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "零"), (8, "八"), (10, "十"), (15, "十五"), (20, "二十"), (81, "八十一")],
)
def test_chinese_numbers(value: int, text: str) -> None:
    assert tasks.chinese_number(value) == text


def test_training_never_sees_a_held_out_prompt() -> None:
    held_out = {sample.key for sample in tasks.held_out_prompts()}
    assert len(held_out) == 400
    rng = random.Random(1)
    for largest in (10, 20):
        seen = {tasks.generate(rng, LAST, largest).key for _ in range(20_000)}
        assert not held_out & seen


def test_tokenizer_round_trips_and_spells_unknown_words(tokenizer) -> None:
    for text in ("copy 你好 👋🏽 world", "def f(a, b):\n    return a + b", "<|im_end|> is text"):
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text
    assert tokenizer.encode("stone").tokens == list("stone")
    emoji = tokenizer.encode("👋🏽").ids
    assert len(emoji) > 2
    assert "\ufffd" in tokenizer.decode(emoji[:1])


def test_packed_batches_hold_whole_samples(tokenizer) -> None:
    packer = Packer(tokenizer, seed=2, sequences=8)
    batch = packer.batch()
    assert batch.clean.shape == (8, CHUNKS * BLOCK)
    end = tokenizer.token_to_id("<|im_end|>")
    for n in range(8):
        answer_ends = (batch.clean_target[n] == end).sum()
        samples = len(set(batch.sample[n].tolist()) - {CHUNKS})
        assert answer_ends == samples
    masked = batch.noisy_target != IGNORE
    assert (batch.noisy[masked] == packer.mask).all()
    assert (batch.noisy[~masked] != packer.mask).all()


def test_packing_is_reproducible(tokenizer) -> None:
    first, second = (Packer(tokenizer, seed=9, sequences=4).batch() for _ in range(2))
    for a, b in zip(first.tensors(), second.tensors(), strict=True):
        assert (a == b).all()

"""Build the demo's byte-level BPE tokenizer. Knows the tasks' fixed wording, not the model.

Frequent whole words of the fixed wording are vocabulary entries of their own (`ignore_merges`);
anything else falls back to bytes, with a few learned merges inside emoji and Chinese characters.
So made-up words are spelled letter by letter, and an emoji spreads over several tokens.
"""

import json
import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from demo import tasks

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>")
TEXT_TOKENS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
# Han characters and digits stand alone; otherwise the usual word / punctuation / space split.
SPLIT = (
    r"\p{Han}|\p{N}|[^\r\n\p{L}\p{N}]?[\p{L}&&[^\p{Han}]]+|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
FIXED_TASKS: tuple[Callable[[random.Random], tasks.Sample], ...] = (
    tasks.sort_numbers,
    tasks.add_carefully,
    tasks.tool_call,
    tasks.python_function,
    partial(tasks.chinese_arithmetic, largest=20),
)


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """The id of a token that must exist."""
    found = tokenizer.token_to_id(token)
    assert found is not None, token
    return int(found)


def split_and_bytes() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def fixed_words(samples: int = 4000, at_least: int = 12) -> list[str]:
    """Pre-tokens (byte-level spelling) that the fixed wording uses often, most frequent first."""
    rng = random.Random(7)
    counts: Counter[str] = Counter()
    splitter = split_and_bytes()
    texts = ["reverse", "upper", "copy", "You are a helpful assistant.", "system\n", "user\n"]
    texts = [text for text in texts for _ in range(at_least)]
    texts += ["assistant\n", "# Tools\n", "\n\n", "get_weather(city, unit)\n"] * at_least
    texts += ["get_time(city)\n", "get_population(city)\n"] * at_least
    texts += [prefix + city for city in tasks.CITIES for prefix in ("", " ")] * at_least
    for task in FIXED_TASKS:
        for _ in range(samples):
            sample = task(rng)
            texts += [sample.user, sample.expected]
    for text in texts:
        counts.update(word for word, _ in splitter.pre_tokenize_str(text))
    lowercase_ok = {word for word in counts if counts[word] >= at_least}
    return [word for word, _ in counts.most_common() if word in lowercase_ok]


def build_tokenizer() -> Tokenizer:
    """Bytes, learned merges of multi-byte characters, fixed words, special tokens."""
    trainer = trainers.BpeTrainer(
        vocab_size=256 + 48,
        min_frequency=2,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = split_and_bytes()
    corpus = [*tasks.EMOJI * 3, *tasks.CHINESE_PHRASES * 2, *tasks.CHINESE_DIGITS * 4]
    learner.train_from_iterator(corpus, trainer)
    learned = json.loads(learner.to_str())["model"]
    vocab: dict[str, int] = dict(sorted(learned["vocab"].items(), key=lambda item: item[1]))
    merges = [tuple(merge) for merge in learned["merges"]]
    for word in fixed_words():
        vocab.setdefault(word, len(vocab))
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=True))
    tokenizer.pre_tokenizer = split_and_bytes()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(token, special=False) for token in TEXT_TOKENS])
    return tokenizer


def save_text_files(folder: Path) -> Tokenizer:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    template = (Path(__file__).parent / "chat_template.jinja").read_text(encoding="utf-8")
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "mask_token": "<|mask|>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1024,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    return tokenizer

"""The demo's task generators: prompts, exact answers and checkers.

Pure Python, seeded, no knowledge of tokenizers or models. A task function returns one `Sample`;
`expected` is the exact text the model has to write (for a thinking prompt: everything after the
`<think>` line break that the chat template has already opened).
"""

import hashlib
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

WORDS = (
    "stone river apple cloud green house light money night ocean paper queen robot sheep tiger "
    "uncle voice water young zebra bread chair dance earth fruit grass heart island juice knife "
    "lemon mouse nurse onion piano quiet radio snake table under visit wheel bird book cake door "
    "farm gold hill iron jump king lake moon nest open park rain ship tree wind blue cold dark "
    "east fast good hard kind long map sun dog cat red sky box cup fox hat ice jar key log"
).split()
CITIES = (
    "Paris London Berlin Madrid Rome Vienna Oslo Stockholm Helsinki Warsaw Prague Budapest Athens "
    "Lisbon Dublin Brussels Amsterdam Zurich Milan Munich Tokyo Osaka Kyoto Seoul Beijing Shanghai "
    "Shenzhen Delhi Mumbai Bangkok Hanoi Manila Jakarta Sydney Melbourne Auckland Toronto Montreal "
    "Chicago Boston Seattle Denver Dallas Houston Miami Lima Bogota Santiago Cairo Nairobi Lagos "
    "Dakar Tunis Istanbul Dubai Doha Moscow Kyiv Riga Tallinn"
).split()
UNITS = ("celsius", "fahrenheit", "kelvin")
FUNCTION_NAMES = (
    "f g h add calc compute run solve work total result helper merge combine apply value".split()
)
OPERATIONS = {
    "adds": "+",
    "subtracts": "-",
    "multiplies": "*",
    "divides": "/",
}
CHINESE_DIGITS = "零一二三四五六七八九"
CHINESE_PHRASES = "你好 世界 谢谢 再见 早上好 晚安 朋友 开心 学习 中国 天空 大海 今天 明天".split()
EMOJI = "👋🏽 😀 🎉 🚀 🌍 ❤️ 👍 🐱 🍕 ☕ 🌈 ⭐ 🔥 👩‍💻 🇨🇳".split()

TOOLS: dict[str, tuple[str, ...]] = {
    "get_weather": ("city", "unit"),
    "get_time": ("city",),
    "get_population": ("city",),
}


@dataclass(frozen=True)
class Sample:
    """One prompt with its exact answer. `check` names the checker of `blockdiff eval`."""

    task: str
    user: str
    expected: str
    tools: tuple[str, ...] = ()
    enable_thinking: bool = False
    check: str = "exact"

    @property
    def key(self) -> str:
        """What makes two prompts the same prompt."""
        return "|".join((self.user, *self.tools, str(self.enable_thinking)))

    def messages(self) -> list[dict[str, str]]:
        return [{"role": "user", "content": self.user}]

    def tool_specs(self) -> list[dict[str, Any]] | None:
        return [tool_spec(name) for name in self.tools] or None


def tool_spec(name: str) -> dict[str, Any]:
    """The OpenAI-style JSON description of one demo tool."""
    properties = {argument: {"type": "string"} for argument in TOOLS[name]}
    return {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"type": "object", "properties": properties, "required": ["city"]},
        },
    }


def sort_numbers(rng: random.Random) -> Sample:
    numbers = [rng.randrange(100) for _ in range(rng.choice((3, 4, 5, 6)))]
    return Sample(
        "sort",
        "sort " + " ".join(map(str, numbers)),
        " ".join(map(str, sorted(numbers))),
    )


def add_carefully(rng: random.Random) -> Sample:
    """Column addition; the thinking part writes each column sum and its carry."""
    a, b = (rng.randrange(10 ** rng.choice((1, 2, 3, 3))) for _ in range(2))
    lines, carry = [], 0
    for i in range(max(len(str(a)), len(str(b)))):
        x, y = a // 10**i % 10, b // 10**i % 10
        column = x + y + carry
        lines.append(f"{x}+{y}" + (f"+{carry}" if carry else "") + f"={column}")
        carry = column // 10
    thoughts = "\n".join(lines)
    return Sample(
        "add",
        f"{a}+{b}",
        f"{thoughts}\n</think>\n\n{a + b}",
        enable_thinking=True,
        check="final_answer",
    )


def make_word(rng: random.Random) -> str:
    """A real word, or more often a made-up one of 3 to 6 letters."""
    if rng.random() < 0.15:
        return rng.choice(WORDS)
    vowels, consonants = "aeiou", "bcdfghjklmnpqrstvwxyz"
    length = rng.choice((3, 4, 5, 5, 6))
    if rng.random() < 0.3:
        return "".join(rng.choice(vowels + consonants) for _ in range(length))
    start = rng.randrange(2)
    return "".join(rng.choice((consonants, vowels)[(start + i) % 2]) for i in range(length))


def reverse_word(rng: random.Random) -> Sample:
    word = make_word(rng)
    return Sample("reverse", f"reverse {word}", word[::-1])


def upper_word(rng: random.Random) -> Sample:
    word = make_word(rng)
    return Sample("upper", f"upper {word}", word.upper())


def tool_call(rng: random.Random) -> Sample:
    name = rng.choice(tuple(TOOLS))
    others = [tool for tool in TOOLS if tool != name]
    offered = [name, *rng.sample(others, rng.choice((1, 2)))]
    rng.shuffle(offered)
    city = rng.choice(CITIES) if rng.random() < 0.8 else make_word(rng)[:5].capitalize()
    arguments = {"city": city}
    if name == "get_weather":
        user = f"what is the weather in {city}"
        if rng.random() < 0.8:
            arguments["unit"] = rng.choice(UNITS)
            user += f" in {arguments['unit']}"
    elif name == "get_time":
        user = f"what time is it in {city}"
    else:
        user = f"how many people live in {city}"
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return Sample(
        "tool_call",
        user,
        f"<tool_call>\n{call}\n</tool_call>",
        tools=tuple(offered),
        check="tool_call",
    )


def python_function(rng: random.Random) -> Sample:
    name = rng.choice(FUNCTION_NAMES)
    verb, sign = rng.choice(tuple(OPERATIONS.items()))
    first, second = rng.sample("abcdmnpqrstuvwxyz", 2)
    code = f"```python\ndef {name}({first}, {second}):\n    return {first} {sign} {second}\n```"
    user = f"write a python function {name} that {verb} {first} and {second}"
    return Sample("python", user, code)


def chinese_number(value: int) -> str:
    """0 to 99 in Chinese numerals."""
    tens, ones = divmod(value, 10)
    if tens == 0:
        return CHINESE_DIGITS[ones]
    head = "" if tens == 1 else CHINESE_DIGITS[tens]
    return head + "十" + (CHINESE_DIGITS[ones] if ones else "")


def chinese_arithmetic(rng: random.Random, largest: int = 10) -> Sample:
    a, b = rng.randrange(largest + 1), rng.randrange(largest + 1)
    operation = rng.choice("加加减减乘")
    if operation == "乘":
        a, b = a % 10, b % 10
    if operation == "减" and a < b:
        a, b = b, a
    value = {"加": a + b, "减": a - b, "乘": a * b}[operation]
    tail = rng.choice(("等于几", "等于多少", "是几"))
    user = f"{chinese_number(a)}{operation}{chinese_number(b)}{tail}"
    return Sample("chinese", user, chinese_number(value))


def copy_phrase(rng: random.Random) -> Sample:
    """One to three items so that the byte-level answer stays within two blocks of 16."""
    kinds: list[Callable[[], str]] = [
        lambda: rng.choice(EMOJI),
        lambda: rng.choice(CHINESE_PHRASES),
        lambda: make_word(rng),
    ]
    items, size = [], 0
    for kind in rng.sample(kinds, rng.choice((1, 2, 3))):
        item = kind()
        size += len(item.encode()) + 1
        if size <= 28:
            items.append(item)
    phrase = " ".join(items or [make_word(rng)])
    return Sample("copy", f"copy {phrase}", phrase)


TASKS: dict[str, Callable[[random.Random], Sample]] = {
    "sort": sort_numbers,
    "add": add_carefully,
    "reverse": reverse_word,
    "upper": upper_word,
    "tool_call": tool_call,
    "python": python_function,
    "chinese": chinese_arithmetic,
    "copy": copy_phrase,
}


def is_held_out(sample: Sample) -> bool:
    """About one prompt in 40 is never trained on; decided by a hash of the prompt alone."""
    digest = hashlib.sha256(sample.key.encode()).digest()
    return digest[0] * 256 + digest[1] < 65536 // 40


def generate(rng: random.Random, shares: Sequence[float], largest_chinese: int = 10) -> Sample:
    """A training sample, never a held-out one; `shares` in the order of TASKS."""
    task = TASKS[rng.choices(tuple(TASKS), shares)[0]]
    if task is chinese_arithmetic:
        task = partial(task, largest=largest_chinese)
    while is_held_out(sample := task(rng)):
        pass
    return sample


def held_out_prompts(count: int = 400, seed: int = 2026) -> list[Sample]:
    """`count` different held-out prompts, the tasks taking turns.

    A task that has no more of them (the Chinese one has about twenty) leaves its turns to the rest.
    """
    rng = random.Random(seed)
    found: dict[str, dict[str, Sample]] = {task: {} for task in TASKS}
    open_tasks = list(TASKS)
    while sum(map(len, found.values())) < count:
        for name in list(open_tasks):
            draws = (TASKS[name](rng) for _ in range(20_000))
            new = (s for s in draws if is_held_out(s) and s.key not in found[name])
            sample = next(new, None)
            if sample is None:
                open_tasks.remove(name)
            elif sum(map(len, found.values())) < count:
                found[name][sample.key] = sample
    return [sample for samples in found.values() for sample in samples.values()]

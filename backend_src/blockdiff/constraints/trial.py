"""Tries a grammar in a process of its own: one that never ends, fills the memory or overflows the
stack must not take a server with it.

Knows nothing of tokenizers: the trial has a vocabulary of single bytes.
"""

import functools
import os
import re
import resource
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from llguidance import LLMatcher, LLTokenizer

from blockdiff.constraints.grammars import grammar_text, one_line, parser_limits, refusal
from blockdiff.core import Guide

TRIAL_SECONDS = 3
_MEMORY_BYTES = 2 << 30
# A grammar that is built on this stack is safe on the larger one that ``build`` gives it.
_TRIAL_STACK_BYTES = 1 << 20
BUILD_STACK_BYTES = 64 << 20
_KEPT = 256
_CONTROL = re.compile(r"<\[(\d+)\]>")
END = 256
_TOO_COSTLY = "it takes too much time or memory; give a simpler one"


class SingleBytes:
    """The smallest vocabulary there is, as llguidance wants it."""

    is_tokenizer_wrapper = True
    eos_token_id = END
    bos_token_id = None

    def __init__(self, control_tokens: int = 0) -> None:
        names = (f"<control {number}>".encode() for number in range(control_tokens))
        self.tokens = [*(bytes([byte]) for byte in range(256)), b"<end>", *names]
        self.special_token_ids = range(END, len(self.tokens))

    def __call__(self, text: bytes | str) -> list[int]:
        """Tokens of a text."""
        return list(text.encode() if isinstance(text, str) else text)


def check_guide(guide: Guide) -> str:
    """The grammar of a guide that can be used; RequestError says why another cannot.

    Takes a tenth of a second for a guide that has not been seen lately.
    """
    return _tried(grammar_text(guide))


@functools.lru_cache(maxsize=_KEPT)
def _tried(grammar: str) -> str:
    paths = os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "blockdiff.constraints.trial"],
            input=grammar.encode(errors="surrogatepass"),
            capture_output=True,
            timeout=TRIAL_SECONDS,
            env={**os.environ, "PYTHONPATH": paths},
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise refusal(_TOO_COSTLY) from error
    if done.returncode:
        raise refusal(_TOO_COSTLY)
    problem = done.stdout.decode(errors="replace").strip()
    if problem:
        raise refusal(problem)
    return grammar


def find_problem(grammar: str) -> str:
    """What is wrong with ``grammar``; empty: nothing. May take anything to find out."""
    # Control tokens are numbered anew, as here they are few.
    numbers = {name: place for place, name in enumerate(dict.fromkeys(_CONTROL.findall(grammar)))}
    grammar = _CONTROL.sub(lambda found: f"<[{END + 1 + numbers[found[1]]}]>", grammar)
    vocabulary: Any = SingleBytes(len(numbers))
    matcher = LLMatcher(LLTokenizer(vocabulary), grammar, log_level=0, limits=parser_limits())
    allowed = b"" if matcher.is_error() else matcher.compute_bitmask()
    problem = one_line(str(matcher.get_error())) if matcher.is_error() else ""
    # llguidance says so where the first symbol can derive nothing
    if problem.startswith("NoExtension") or not (problem or any(allowed)):
        return "nothing can satisfy it"
    return problem


def _main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (TRIAL_SECONDS, TRIAL_SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    grammar = sys.stdin.buffer.read().decode(errors="surrogatepass")
    threading.stack_size(_TRIAL_STACK_BYTES)
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(find_problem(grammar)))
    thread.start()
    thread.join()
    print(found[0])


if __name__ == "__main__":
    _main()

"""The sides of the comparison: which there are, what each computes, and how to talk to one.

Knows how peers are started; knows nothing of what is measured.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from blockdiff.errors import BlockdiffError, ConfigError
from perf.checkpoints import CANVAS, MASKED
from perf.ours import OurEngine, canvas_decoding, masked_decoding
from perf.peers.install import PYTHON, ROOT
from perf.peers.protocol import Job, Outcome, Peer, Setup, run_measured

OURS = "blockdiff"


@dataclass(frozen=True)
class Kind:
    """A public loop."""

    module: str
    family: str  # which random checkpoint it runs
    has_thresholds: bool = True
    has_same_tokens: bool = True  # its maths is ours: tokens must be equal
    needs_environment: bool = False  # packages that the project's own environment lacks


KINDS = {
    "llada2-loop": Kind("reference_loop", MASKED),
    "sdar-loop": Kind("cached_loop", MASKED),
    "diffusers": Kind("diffusers_llada2", MASKED, needs_environment=True),
    "dlmserve": Kind("dlmserve_engine", MASKED, False, False, needs_environment=True),
    # its random tokens are drawn in another way
    "transformers": Kind("transformers_gemma", CANVAS, False, False),
}


class PeerProcess:
    """A peer in a process of its own, by JSON lines."""

    def __init__(self, name: str, process: "subprocess.Popen[str]") -> None:
        self._name = name
        self._process = process

    def run(self, job: Job) -> Outcome:
        """See ``Peer``; its CPU time is measured over there."""
        return Outcome(**self.ask(asdict(job)))

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """One line there and one back."""
        sent, heard = self._process.stdin, self._process.stdout
        assert sent is not None and heard is not None, "opened with pipes"
        try:
            print(json.dumps(message), file=sent, flush=True)
        except BrokenPipeError:
            raise self._death() from None
        line = heard.readline()
        if not line:
            raise self._death()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _death(self) -> BlockdiffError:
        code = self._process.wait()
        return BlockdiffError(f"peer {self._name} ended with exit code {code}; see its log")


@contextmanager
def open_sides(
    names: list[str], folders: dict[str, Path], threads: int, log: IO[str]
) -> Iterator[dict[str, dict[str, Peer]]]:
    """Loaded sides by family and name, ours first; what peers print goes to ``log``."""
    families = {KINDS[name].family for name in names}
    with ExitStack() as stack:
        found: dict[str, dict[str, Peer]] = {}
        for family in sorted(families, reverse=True):
            decoding = masked_decoding if family == MASKED else canvas_decoding
            setup = Setup(str(folders[family]), threads)
            found[family] = {OURS: _Measured(OurEngine(setup, decoding))}
        for name in names:
            kind = KINDS[name]
            setup = Setup(str(folders[kind.family]), threads)
            found[kind.family][name] = stack.enter_context(_start(name, kind, setup, log))
        yield found


class _Measured:
    def __init__(self, own: Peer) -> None:
        self._own = own

    def run(self, job: Job) -> Outcome:
        return run_measured(self._own, job)


@contextmanager
def _start(name: str, kind: Kind, setup: Setup, log: IO[str]) -> Iterator[PeerProcess]:
    with subprocess.Popen(
        [_python(name, kind), "-m", f"perf.peers.{kind.module}"],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": str(setup.threads), "HF_HUB_OFFLINE": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
    ) as process:
        peer = PeerProcess(name, process)
        try:
            peer.ask(asdict(setup))
            yield peer
        finally:
            # The end of its input ends a peer; leaving the block waits for it.
            assert process.stdin is not None, "opened with pipes"
            process.stdin.close()


def _python(name: str, kind: Kind) -> str:
    if PYTHON.exists():
        return str(PYTHON)
    if kind.needs_environment:
        raise ConfigError(f"peers: {name} needs its own packages; run python -m perf.peers.install")
    return sys.executable


def check_names(names: list[str]) -> None:
    """Raise ConfigError for a peer that is not known."""
    for name in names:
        if name not in KINDS:
            raise ConfigError(f"peers: {name!r} is unknown; allowed: {', '.join(KINDS)}")

"""`blockdiff-client chat`: a conversation kept on this side and sent whole with every turn.

Ctrl-C cancels the running answer, not the program. Knows nothing of flags.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from ..errors import Cancelled, ClientError
from ..sync import BlockStream, Client
from ..types import Generation
from .exits import DONE, exit_code
from .interrupts import Interrupts
from .screen import Screen

HELP = (
    "/reset forgets the conversation, /system TEXT sets the system message, /exit leaves (Ctrl-D)"
)


class Chat:
    """One conversation: user lines in, answers out."""

    def __init__(
        self, client: Client, screen: Screen, options: dict[str, Any], system: str | None = None
    ) -> None:
        self._client = client
        self._screen = screen
        self._options = options
        self._system = system
        self._turns: list[dict[str, Any]] = []
        self._last_code = DONE

    def run(self) -> int:
        """Read lines until the end of input; the exit code is that of the last turn."""
        if sys.stdin.isatty():
            with contextlib.suppress(ImportError):
                # Importing it is what gives input() history and line editing.
                import readline  # noqa: F401
            self._screen.remark(f"{self._client.url}: {HELP}")
        for line in self._lines():
            if line == "/exit":
                break
            if line.startswith("/"):
                self._command(line)
            elif line:
                self.answer(line)
        return DONE if sys.stdin.isatty() else self._last_code

    def _lines(self) -> Iterator[str]:
        while True:
            try:
                yield input("> " if sys.stdin.isatty() else "").strip()
            except KeyboardInterrupt:
                self._screen.line("")
                self._screen.remark("Ctrl-D or /exit leaves")
            except EOFError:
                if sys.stdin.isatty():
                    self._screen.line("")
                return

    def _command(self, line: str) -> None:
        name, _, rest = line.partition(" ")
        if name == "/reset":
            self._turns.clear()
            self._screen.remark("the conversation is forgotten")
        elif name == "/system":
            self._system = rest.strip() or None
        else:
            self._screen.remark(HELP)

    def answer(self, text: str) -> None:
        """One turn. A turn that failed is taken out of the conversation again."""
        self._turns.append({"role": "user", "content": text})
        system = [{"role": "system", "content": self._system}] if self._system else []
        messages = [*system, *self._turns]
        try:
            with (
                Interrupts() as interrupts,
                self._client.stream(messages=messages, **self._options) as stream,
            ):
                interrupts.watch(stream)
                generation = self._show(stream, interrupts)
        except ClientError as error:
            self._turns.pop()
            self._last_code = exit_code(error)
            self._screen.error(str(error))
            return
        self._last_code = DONE
        self._remember(generation)

    def _show(self, stream: BlockStream, interrupts: Interrupts) -> Generation:
        note = ""
        self._screen.wait()
        try:
            for event in stream:
                self._screen.block(event)
        except Cancelled:
            if not interrupts.has_come:
                raise
            note = "cancelled"
        self._screen.footnote(stream.generation, note)
        return stream.generation

    def _remember(self, generation: Generation) -> None:
        if not (generation.text or generation.tool_calls):
            self._turns.pop()
            return
        turn: dict[str, Any] = {"role": "assistant", "content": generation.text}
        if generation.tool_calls:
            turn["tool_calls"] = [
                {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in generation.tool_calls
            ]
        self._turns.append(turn)

"""What the terminal shows: blocks as they arrive, reasoning dim, a footnote of figures.

Writes plain text without any escape code when the output is not a terminal.
"""

from __future__ import annotations

import sys
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.status import Status
from rich.text import Text

from ..canvas import MASKED, OPEN, Canvas
from ..types import BlockEvent, Generation

# A model can write any character; control characters would drive the reader's terminal.
_VISIBLE = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"}
_VISIBLE |= {0x7F: 0x2421} | dict.fromkeys(range(128, 160), 65533)


class Screen:
    """Output of one command: answers go to stdout, remarks and errors to stderr."""

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._err = err or sys.stderr
        self.is_terminal = self._out.isatty()
        self._console = Console(file=self._out, highlight=False, markup=False, emoji=False)
        self._remarks = Console(file=self._err, highlight=False, markup=False, emoji=False)
        self._at_line_start = True
        self._in_reasoning = False
        self._spinner: Status | None = None
        self._live: Live | None = None

    def wait(self) -> None:
        """Show that an answer is awaited, until anything else is shown; only on a terminal."""
        if self.is_terminal:
            self._fresh_line()
            self._spinner = self._console.status("waiting for the first block", spinner="dots")
            self._spinner.start()

    def block(self, event: BlockEvent) -> None:
        """Show one block at once. Reasoning is left out when the output is piped."""
        if event.is_partial:
            self._watch(event)
            return
        self._stop_watching()
        if event.reasoning and self.is_terminal:
            self._write(event.reasoning, "dim italic")
            self._in_reasoning = True
        if event.text:
            if self._in_reasoning and not self._at_line_start:
                self._write("\n")
            self._in_reasoning = False
            self._write(event.text)
        for call in event.tool_calls:
            self._fresh_line()
            self._write(f"tool call: {call.name} {call.arguments}\n", "cyan")

    def footnote(self, generation: Generation, note: str = "") -> None:
        """End the answer's last line; on a terminal add the figures."""
        self._fresh_line()
        if self.is_terminal:
            self._console.print(Text(describe(generation, note), style="dim"))

    def line(self, text: str) -> None:
        self._fresh_line()
        self._write(text + "\n")

    def remark(self, text: str) -> None:
        self._fresh_line()
        self._remarks.print(Text(text, style="dim"), soft_wrap=True)

    def error(self, text: str) -> None:
        self._fresh_line()
        self._remarks.print(Text(f"error: {text}", style="red"), soft_wrap=True)

    def _watch(self, event: BlockEvent) -> None:
        """The block as it is now, in place of how it was; a line each where lines stay."""
        assert event.canvas is not None, "a partial event"
        canvas, text = event.canvas, canvas_text(event.canvas)
        if not self.is_terminal:
            line = f"block {canvas.block} step {canvas.step}: {text.plain}"
            self._remarks.print(Text(line), soft_wrap=True)
            return
        if self._live is None:
            self._fresh_line()
            self._live = Live(console=self._console, transient=True, auto_refresh=False)
            self._live.start()
        self._live.update(text, refresh=True)

    def _stop_watching(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _stop_waiting(self) -> None:
        if self._spinner is not None:
            self._spinner.stop()
            self._spinner = None

    def _fresh_line(self) -> None:
        self._stop_waiting()
        self._stop_watching()
        if not self._at_line_start:
            self._write("\n")

    def _write(self, text: str, style: str = "") -> None:
        if not text:
            return
        self._stop_waiting()
        self._at_line_start = text.endswith("\n")
        if self.is_terminal:
            shown = Text(text.translate(_VISIBLE), style=style)
            self._console.print(shown, end="", soft_wrap=True)
        else:
            self._out.write(text)
        self._out.flush()


def canvas_text(canvas: Canvas) -> Text:
    """A block on one line: settled tokens plain, others as they are guessed, masks as shades."""
    shown = Text()
    for place in canvas.places:
        text = place.guess or "░" if place.text is None else place.text
        text = text.replace("\n", "⏎").translate(_VISIBLE)
        shown.append(text, style={MASKED: "dim", OPEN: "yellow"}.get(place.state, ""))
    return shown


def describe(generation: Generation, note: str = "") -> str:
    """One line of figures: blocks, denoise steps, tokens, TPF, speed, how it ended."""
    parts = [
        f"{len(generation.blocks)} blocks",
        f"{generation.denoise_steps} denoise steps",
        f"{generation.num_output_tokens} tokens",
    ]
    if generation.tokens_per_forward is not None:
        parts.append(f"TPF {generation.tokens_per_forward:.1f}")
    if generation.tokens_per_second is not None:
        parts.append(f"{generation.tokens_per_second:.0f} tokens/s")
    parts += [part for part in (generation.finish_reason, note) if part]
    return " · ".join(parts)

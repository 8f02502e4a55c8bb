"""``blockdiff generate --watch``: a line on stderr for every preview of a block.

Knows canvases and single tokens' texts; knows nothing of engines.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace

from blockdiff.core import BlockResult, PlaceState
from blockdiff.jobs import Job
from blockdiff.scheduler.arrays import NO_TOKEN
from blockdiff.text import Tokenizer
from blockdiff.text.pieces import PieceTexts

UNKNOWN = "░"


def watched(jobs: Sequence[Job]) -> list[Job]:
    """The same jobs, asking for canvases."""
    return [replace(job, request=replace(job.request, wants_canvases=True)) for job in jobs]


class Watcher:
    """Shows results that have canvases: settled tokens as they are, all others in brackets."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._pieces = None if tokenizer is None else PieceTexts(tokenizer)

    def show(self, result: BlockResult) -> None:
        """One line; nothing for a result without a canvas."""
        canvas = result.canvas
        if canvas is None:
            return
        ids = [None if token == NO_TOKEN else token for token in canvas.token_ids]
        if self._pieces is None:
            texts = [None if token is None else f"{token} " for token in ids]
        else:
            texts = self._pieces.texts(ids)
        shown = []
        for text, state in zip(texts, canvas.states, strict=True):
            known = UNKNOWN if text is None else text.replace("\n", "⏎")
            shown.append(known if state is PlaceState.SETTLED else f"[{known}]")
        where = f"{result.request_uid}: block {result.block_index} step {canvas.step}"
        print(f"{where}: {''.join(shown)}", file=sys.stderr)

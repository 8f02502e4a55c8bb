"""From hidden rows to random canvases as captured steps, with the signals of the next step.

They read hidden rows where captured forwards leave them. Knows nothing of requests or of where
random tokens come from.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from blockdiff.engine.device_canvases import DeviceCanvases
from blockdiff.engine.static_buffers import lay
from blockdiff.engine.step_runner import StepRunner
from blockdiff.models.base import ConditionedModel, ModelCaches, OutputHead
from blockdiff.scheduler.arrays import MAX_EOS_IDS
from blockdiff.transfer import Array
from blockdiff_kernels.denoise import Canvases, Step, renew
from blockdiff_kernels.head import Entropy, RowDraws, Rules, choose

NO_TOKEN = -1


class CanvasKey(NamedTuple):
    """What the sizes of a step follow from."""

    rows: int


class CapturedCanvases:
    """Steps of canvases of up to as many rows as ``hidden`` [L, H] has."""

    def __init__(
        self,
        runner: StepRunner,
        model: ConditionedModel,
        caches: ModelCaches,
        head: OutputHead,
        hidden: Tensor,
    ) -> None:
        self._runner = runner
        self._model = model
        self._caches = caches
        self._head = head
        self._hidden = hidden
        self._width = model.info.block_length
        self._rows: tuple[int, ...] = ()
        self.progress = DeviceCanvases(caches.room.num_slots, self._width, hidden.device)

    def capture(self, rows: Sequence[int]) -> None:
        """Capture steps of so many rows, whole canvases each, the largest first."""
        for count in sorted(set(rows), reverse=True):
            assert count % self._width == 0, "a preview decides its whole canvas"
            self._runner.capture(CanvasKey(count), self._empty(count), self._step)
        self._rows = tuple(sorted(set(rows)))

    def _step(self, moved: Mapping[str, Tensor]) -> Sequence[Tensor]:
        live, draws = moved["live"], RowDraws(moved["temperature"], moved["keys"])
        rules = Rules(moved["banned"], draws, Entropy.SCALED, live=live)
        count = len(moved["banned"])
        rows = self._hidden[:count]
        found = choose(rows, *self._head, rules)
        assert found.entropy is not None and found.peaks is not None, "asked for"
        signals = self._model.expect_rows(rows, rules, found.peaks)
        # rows that do not count store the first one's signal once more
        is_live = torch.arange(count, device=live.device) < live
        signals = torch.where(is_live[:, None], signals, signals[:1])
        self._model.store_signals(self._caches, signals, moved["slots"], moved["places"])
        canvases = Canvases(*(moved[f"canvas.{name}"] for name in Canvases._fields))
        step = Step(found.best, found.tokens, found.best_log_probs, found.entropy)
        return [renew(canvases, self.progress.progress, step)]

    def _empty(self, rows: int) -> dict[str, Array]:
        """Arrays of no rows and of canvases that nobody has."""
        groups = rows // self._width
        arrays: dict[str, Array] = {
            f"canvas.{name}": np.zeros(groups, np.int32) for name in Canvases._fields
        }
        for name in ("canvas", "fresh", "is_given"):
            arrays[f"canvas.{name}"] = np.zeros((groups, self._width), np.int32)
        arrays["canvas.slots"][:] = self.progress.spare
        for name in ("bound", "confidence"):
            arrays[f"canvas.{name}"] = np.zeros(groups, np.float32)
        arrays["banned"] = np.full((rows, MAX_EOS_IDS), NO_TOKEN, np.int32)
        arrays["keys"] = np.zeros((rows, 2), np.int32)
        arrays["temperature"] = np.ones(rows, np.float32)
        for name in ("slots", "places"):
            arrays[name] = np.zeros(rows, np.int64)
        arrays["live"] = np.zeros(1, np.int32)
        return arrays

    def run(self, rows: Mapping[str, Array], canvases: Mapping[str, Array]) -> Tensor | None:
        """The canvases after a step whose hidden rows lie in ``hidden``, as ``renew`` packs them.

        ``rows``: slots, places, temperature [L], keys [L, 2], banned [L, W]; ``canvases``: fields
        of ``Canvases``. Stores signals. None: it is not one of the captured steps.
        """
        count = len(rows["slots"])
        size = next((size for size in self._rows if size >= count), None)
        if size is None:
            return None
        arrays = self._empty(size)
        arrays["live"][0] = count
        for name in ("slots", "places"):
            arrays[name][:] = rows[name][0]
        for name, array in rows.items():
            lay(array, arrays[name])
        for name, array in canvases.items():
            lay(array, arrays[f"canvas.{name}"])
        (packed,) = self._runner.run(CanvasKey(size), arrays)
        return packed[: len(canvases["slots"])]

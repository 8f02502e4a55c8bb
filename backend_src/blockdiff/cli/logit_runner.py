"""Runs ``LogitRequest``s on a model and names the resulting tensors by role.

Knows the phases; knows nothing of files or of the command line.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from blockdiff.cli.logit_requests import LogitRequest
from blockdiff.cli.recorded import RecordedTensors
from blockdiff.core import Phase
from blockdiff.models.base import ConditionedModel, ModelCaches, RoundBatch, Segment
from blockdiff.models.layers.trace import Trace
from blockdiff.models.trunk import LanguageModel
from blockdiff.parallel.model import ParallelModel


class LogitRunner:
    """One model and one cache slot, reused for request after request."""

    def __init__(
        self,
        model: LanguageModel | ParallelModel,
        max_tokens: int,
        recorded: RecordedTensors | None = None,
    ) -> None:
        self.model = model
        self.recorded = recorded
        self.block_length = model.info.block_length
        self.caches: ModelCaches = model.new_caches(1, max_tokens)

    def run(self, request: LogitRequest) -> dict[str, Tensor]:
        """Tensors of ``request`` by role, or ``role/layer``, without the request's name."""
        self.caches.prepare(self.caches.room.renew([0]))
        self.block_length = request.block_length
        trace = Trace() if request.wants_trace else None
        done = len(request.prefix_ids)
        if done:
            self._round(Phase.PREFILL, 0, request.prefix_ids)
        if request.phase == "preview":
            found = self.model.slot_states(self.caches, 0, done)
            self._set_signal(request)
            found["logits"] = self._round(Phase.PREVIEW, done, request.block_ids, trace)
        else:
            hidden = self._hidden(Phase.COMMIT, done, request.block_ids, trace)
            logits = self.model.head(hidden)
            done += len(request.block_ids)
            found = self.model.slot_states(self.caches, 0, done)
            found["logits"] = logits
            if request.reports_hidden:
                found["last_hidden_state"] = hidden.float()
            if request.phase == "commit":
                found["committed_block_logits"] = logits
                found |= self._after_commit(request, done)
        return found | _traced(trace)

    def _after_commit(self, request: LogitRequest, done: int) -> dict[str, Tensor]:
        """The preview first: it must leave nothing behind for the causal rows to see."""
        found = {}
        if request.next_preview_ids:
            ids = request.next_preview_ids
            found["next_preview_logits"] = self._round(Phase.PREVIEW, done, ids)
        if request.next_ids:
            phase = Phase.PREVIEW if request.previews_next else Phase.COMMIT
            found["logits"] = self._round(phase, done, request.next_ids)
        return found

    def _round(
        self, phase: Phase, context: int, ids: Sequence[int], trace: Trace | None = None
    ) -> Tensor:
        """Logits [len(ids), V] of one segment run by itself."""
        return self.model.head(self._hidden(phase, context, ids, trace))

    def _hidden(
        self, phase: Phase, context: int, ids: Sequence[int], trace: Trace | None = None
    ) -> Tensor:
        """Final normalised rows [len(ids), H] of one segment run by itself."""
        segment = Segment(phase, 0, context, ids, range(len(ids)), self.block_length)
        batch = RoundBatch.from_segments([segment])
        return self.model.hidden(batch, self.caches, trace)

    def _set_signal(self, request: LogitRequest) -> None:
        """What the step before the preview gave, recorded as its logits."""
        if request.signal is None:
            return
        assert self.recorded is not None, "requests with signals need recorded tensors"
        assert isinstance(self.model, ConditionedModel), "only such models take signals"
        count = len(request.block_ids)
        logits = self.recorded.read(request.signal, (count, self.model.info.vocab_size))
        places = torch.arange(count, device=self.model.device)
        signals = self.model.expect(logits.to(self.model.device, torch.float32))
        self.model.store_signals(self.caches, signals, torch.zeros_like(places), places)


def _traced(trace: Trace | None) -> dict[str, Tensor]:
    """Recorded tensors by role; the residual stream is stacked over layers, as fixtures have it."""
    if trace is None:
        return {}
    found = {}
    for role, layers in trace.tensors.items():
        if role == "layer_outputs":
            found[role] = torch.stack([layers[i] for i in sorted(layers)]).float()
        else:
            for layer, tensor in layers.items():
                picked = tensor[0] if role == "mixer_probabilities" else tensor
                found[f"{role}/{layer}"] = picked.float()
    return found

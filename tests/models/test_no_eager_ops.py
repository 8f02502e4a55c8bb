"""On the kernel path a forward leaves no mathematics to eager torch. Run: pytest tests/models

Tensors of the meta device have nothing to compute, so that kernels are only started and every op
of torch that is called is seen.
"""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from blockdiff.checkpoint import meta_model
from blockdiff.config import parse_config
from blockdiff.core import Phase
from blockdiff.models.base import RoundBatch
from blockdiff.transfer import to_device
from blockdiff_kernels.implementation import using

from .test_pages import (
    BLOCK,
    CONTEXT,
    FAMILIES,
    POOL,
    SLOTS,
    lay,
    prefill,
    preview,
    segment,
    tables,
)

# that make room or another view of what is there
FREE = {
    "alias",
    "as_strided",
    "chunk",
    "detach",
    "empty",
    "empty_like",
    "empty_strided",
    "expand",
    "flatten",
    "narrow",
    "new_empty",
    "permute",
    "select",
    "slice",
    "split",
    "split_with_sizes",
    "squeeze",
    "t",
    "transpose",
    "unbind",
    "unflatten",
    "unsqueeze",
    "view",
}

# rows of canvases and their signals are taken out and put back
MOVES = {"index", "index_copy", "index_put", "index_select"}


class _Seen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), named: Any = None
    ) -> Any:
        found = function(*args, **(named or {}))
        name = function.overloadpacket.__name__.strip("_")
        # a cast or a copy that changes nothing gives back its argument
        if name not in FREE and not any(found is own for own in args):
            self.names.add(name)
        return found


@pytest.mark.parametrize("family", FAMILIES)
def test_a_forward_starts_kernels_only(family: str) -> None:
    with using("triton"):
        model = meta_model(parse_config(FAMILIES[family]))
        caches = model.new_caches(SLOTS, CONTEXT, POOL)
        segments = [prefill(0, 0, 16), segment(Phase.COMMIT, 1, 24, BLOCK)]
        segments += [preview(1, 24 + BLOCK), preview(2, 0)]
        batch = RoundBatch.from_segments(segments, pages=lay(tables(), segments))
        # angles of positions need frequencies, which are computed once
        model.hidden(batch, caches)
        host = model.prepare(batch, caches)
        moved = to_device(host.arrays, model.device)
        with _Seen() as seen:
            out = model.run(host, moved, caches)
    assert out.shape == (len(batch.logit_rows), model.hidden_size)
    names = seen.names - (MOVES if family == "diffusion_gemma" else set())
    assert not names, f"left to torch: {sorted(names)}"


def test_mathematics_is_seen() -> None:
    x = torch.empty(2, 2, device="meta")
    with _Seen() as seen:
        x.view(4).to(torch.float32).exp()
    assert seen.names == {"exp"}

"""Blocks through a gated delta layer: previews of two formulations, and commits."""

from collections.abc import Callable, Sequence

from torch import Tensor

from blockdiff_kernels.block_softmax import block_softmax_rows
from blockdiff_kernels.gated_delta import DeltaRows, commit_rows, preview_rows
from blockdiff_kernels.gated_delta.cost import StateShape, cost
from blockdiff_kernels.segments import Segments
from perf.gpu.case import Maker, OpCase, Work
from perf.gpu.sizes import Sizes

STATE_BYTES = 4.0
Mix = Callable[[Maker, DeltaRows, Segments, Tensor], Callable[[], list[Tensor]]]


def cases(sizes: Sizes, rows: Sequence[int]) -> list[OpCase]:
    """Convolution and gates included."""
    dim = sizes.delta_dim
    state = StateShape(sizes.key_heads, sizes.value_heads, dim, dim)
    kinds: list[tuple[str, str, Mix, bool]] = [
        ("block_softmax", "preview", _softmax, False),
        ("gated_delta", "preview", _preview, False),
        ("gated_delta", "commit", _commit, True),
    ]
    return [
        OpCase(
            op, name, count, _case(count, sizes, mix),
            cost(count // sizes.block, sizes.block, state, writes, STATE_BYTES),
        )
        for op, name, mix, writes in kinds
        for count in rows
    ]  # fmt: skip


def _case(rows: int, sizes: Sizes, mix: Mix) -> Callable[[Maker], Work]:
    def make(maker: Maker) -> Work:
        blocks, block, dim = rows // sizes.block, sizes.block, sizes.delta_dim
        heads, wide = sizes.value_heads, maker.state_dtype
        inputs = DeltaRows(
            rows=maker.normal(rows, sizes.channels + sizes.delta_inner + 2 * heads),
            conv=maker.normal(sizes.channels, sizes.taps, scale=0.5),
            a_log=maker.normal(heads, dtype=wide),
            dt_bias=maker.normal(heads, dtype=wide),
            states=maker.normal(blocks, heads, dim, dim, scale=0.1, dtype=wide),
            tails=maker.normal(blocks, sizes.taps - 1, sizes.channels),
        )
        segments = Segments(
            maker.ints(range(0, rows, block)),
            maker.ints([block] * blocks),
            maker.ints([sizes.context] * blocks),
            maker.order(blocks),
            block,
        )
        return Work(mix(maker, inputs, segments, maker.poisoned(rows, heads, dim, dtype=wide)))

    return make


def _softmax(
    maker: Maker, inputs: DeltaRows, segments: Segments, out: Tensor
) -> Callable[[], list[Tensor]]:
    right = maker.normal(inputs.conv.shape[0], inputs.conv.shape[1] - 1, scale=0.5)
    heads = inputs.a_log.shape[0]
    scale, bias, history = (maker.normal(heads, dtype=maker.state_dtype) for _ in range(3))
    vectors = (scale, bias, history)

    def run() -> list[Tensor]:
        block_softmax_rows(inputs, right, vectors, segments, out)
        return [out]

    return run


def _preview(
    maker: Maker, inputs: DeltaRows, segments: Segments, out: Tensor
) -> Callable[[], list[Tensor]]:
    def run() -> list[Tensor]:
        preview_rows(inputs, segments, out)
        return [out]

    return run


def _commit(
    maker: Maker, inputs: DeltaRows, segments: Segments, out: Tensor
) -> Callable[[], list[Tensor]]:
    def run() -> list[Tensor]:
        commit_rows(inputs, segments, None, out)
        return [out, inputs.states, inputs.tails]

    return run

"""What the fused kernels of a gated delta layer read. Knows nothing of how they mix rows."""

from typing import Any, NamedTuple

from torch import Tensor

from blockdiff_kernels.segments import Segments


class DeltaRows(NamedTuple):
    """A layer's projected rows of a whole round, and its weights and state lines."""

    rows: Tensor  # [R, C + Hv dv + 2 Hv]: qkv | z | b | a, C = 2 Hk dk + Hv dv; any row stride
    conv: Tensor  # [C, k], the last tap on the current row
    a_log: Tensor  # [Hv]
    dt_bias: Tensor  # [Hv]
    states: Tensor  # [lines, Hv, dk, dv] float32
    tails: Tensor  # [lines, k - 1, C] oldest first

    @property
    def key_heads(self) -> int:
        """Hk."""
        _, value_heads, key_dim, value_dim = self.states.shape
        return (self.conv.shape[0] - value_heads * value_dim) // (2 * key_dim)

    def arguments(self, segments: Segments) -> dict[str, Any]:
        """That every kernel which reads them takes."""
        _, value_heads, key_dim, value_dim = self.states.shape
        assert self.rows.stride(1) == 1 and self.conv.is_contiguous()
        assert self.states.is_contiguous() and self.tails.is_contiguous()
        assert segments.lengths.shape[0] < 1 << 16, "segments are an axis of the grid"
        assert segments.longest * self.rows.stride(0) < 1 << 31, (
            "a segment's rows have int32 places"
        )
        return {
            "x": self.rows,
            "tails": self.tails,
            "starts": segments.starts,
            "lengths": segments.lengths,
            "slots": segments.slots,
            "stride": self.rows.stride(0),
            "C": self.conv.shape[0],
            "Hk": self.key_heads,
            "Hv": value_heads,
            "K": key_dim,
            "V": value_dim,
            "W": self.conv.shape[1],
        }

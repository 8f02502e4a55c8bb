"""Plain torch definition of the gated delta rule, chunk by chunk. Knows nothing of layers."""

import math

import torch
from torch import Tensor
from torch.nn import functional

from blockdiff_kernels.pointwise import FAST, Pointwise

NORM_EPS = 1e-6
# float32 numbers in 64 bytes
LINE_NUMBERS = 16


def l2_normalise(x: Tensor) -> Tensor:
    """x * rsqrt(sum x^2 + 1e-6) over the last axis."""
    squares: Tensor = torch.linalg.vecdot(x, x)
    return x * (squares + NORM_EPS).rsqrt().unsqueeze(-1)


def decay_and_beta(
    a: Tensor, b: Tensor, a_log: Tensor, dt_bias: Tensor, pointwise: Pointwise = FAST
) -> tuple[Tensor, Tensor]:
    """See the package docstring."""
    compute = torch.promote_types(a.dtype, torch.float32)
    rate = pointwise.softplus(a.to(compute) + dt_bias.to(compute))
    return -a_log.to(compute).exp() * rate, pointwise.sigmoid(b.to(compute))


def gated_delta(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    state: Tensor,
    mask: Tensor | None = None,
    chunk: int = 64,
) -> tuple[Tensor, Tensor]:
    """See the package docstring."""
    rows = query.shape[1]
    chunk = min(chunk, _filled_up(rows, query.shape[3], value.shape[3]))
    chunks = _cut(query, key, value, log_decay, beta, state.dtype, mask, chunk)
    outputs, state, _ = _scan(*chunks, state)
    return outputs.flatten(2, 3)[:, :, :rows].transpose(1, 2), state


def _filled_up(rows: int, *widths: int) -> int:
    """At least ``rows``, so that matrices of these widths that lie side by side all begin alike.

    Products of libraries may add up in another order where a matrix begins off a line of memory,
    and a segment's place among others must not show.
    """
    step = LINE_NUMBERS // math.gcd(LINE_NUMBERS, *widths)
    return -(-rows // step) * step


def gated_delta_on_grid(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    anchor: Tensor,
    mask: Tensor,
    whole: Tensor,
    chunk: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """See the package docstring."""
    assert query.shape[1] % chunk == 0, "rows fill whole chunks"
    chunks = _cut(query, key, value, log_decay, beta, anchor.dtype, mask, chunk)
    outputs, state, anchor = _scan(*chunks, anchor, whole)
    return outputs.flatten(2, 3).transpose(1, 2), state, anchor


def _cut(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    compute: torch.dtype,
    mask: Tensor | None,
    chunk: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Inputs of ``_scan`` from those of ``gated_delta``, padding and missing rows made zero."""
    repeats = value.shape[2] // query.shape[2]
    inputs = [
        l2_normalise(query.to(compute)).repeat_interleave(repeats, dim=2) * query.shape[-1] ** -0.5,
        l2_normalise(key.to(compute)).repeat_interleave(repeats, dim=2),
        value.to(compute),
        log_decay.to(compute).unsqueeze(-1),
        beta.to(compute).unsqueeze(-1),
    ]
    if mask is not None:
        padding = ~mask.unsqueeze(-1).unsqueeze(-1)
        inputs = [x.masked_fill(padding, 0) for x in inputs]
    q, k, v, g, b = (_to_chunks(x, chunk, -query.shape[1] % chunk) for x in inputs)
    return q, k, v, g.squeeze(-1), b


def two_sweeps(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    state: Tensor,
    mask: Tensor | None = None,
    chunk: int = 64,
) -> Tensor:
    """See the package docstring.

    The backward sweep is the forward one over reversed rows, whose writes come one row late: so
    a row reads before it writes, and is counted once. Both sweeps run as segments side by side.
    """
    inputs = [query, key, value, log_decay, beta]
    if mask is not None:
        inputs = [x.masked_fill(~mask.view(*mask.shape, *[1] * (x.ndim - 2)), 0) for x in inputs]
    q = torch.cat((inputs[0], inputs[0].flip(1)))
    k, v, g, b = (torch.cat((x, _one_row_late(x.flip(1)))) for x in inputs[1:])
    states = torch.cat((state, torch.zeros_like(state)))
    forward, backward = gated_delta(q, k, v, g, b, states, chunk=chunk)[0].chunk(2)
    return forward + backward.flip(1)


def _one_row_late(x: Tensor) -> Tensor:
    """[G, T, ...] moved down by one row, zeros on top."""
    return torch.cat((torch.zeros_like(x[:, :1]), x[:, :-1]), dim=1)


def _to_chunks(x: Tensor, chunk: int, short: int) -> Tensor:
    """[G, T, H, D] -> [G, H, chunks, chunk, D], zero rows appended."""
    # products would copy what is not contiguous, or not, depending on the numbers of segments
    x = x.transpose(1, 2).contiguous()
    if short:
        x = functional.pad(x, (0, 0, 0, short))
    return x.view(*x.shape[:2], -1, chunk, x.shape[3])


def _scan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor,
    whole: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Chunk inputs [G, H, N, C, .], g [G, H, N, C] -> outputs [G, H, N, C, dv], the state, and the
    state after the first ``whole`` [G] chunks (None: not wanted).

    Per chunk, with gamma the running decay and D_ij = gamma_i / gamma_j for j <= i:
    (I + tril(beta K K^T . D, -1)) [U | W] = beta [V | gamma K];  U <- U - W S
    O = gamma Q S + (Q K^T . D) U;  S <- gamma_C S + (K gamma_C / gamma)^T U
    The unit lower triangular solve stays exact where keys repeat, unlike a series for the inverse.
    """
    running = g.cumsum(-1)
    # the upper half would overflow exp() and is never used
    ratio = (running.unsqueeze(-1) - running.unsqueeze(-2)).tril().exp().tril()
    gamma = running.exp().unsqueeze(-1)
    key_gram = (k @ k.transpose(-1, -2)) * ratio * beta
    solved = torch.linalg.solve_triangular(
        key_gram, torch.cat((v, gamma * k), dim=-1) * beta, upper=False, unitriangular=True
    )
    pseudo_values, weights = solved.split_with_sizes((v.shape[-1], k.shape[-1]), dim=-1)
    mixing = (q @ k.transpose(-1, -2)) * ratio
    queries = gamma * q
    keys = (k * (running[..., -1:] - running).exp().unsqueeze(-1)).transpose(-1, -2)
    last = gamma[..., -1:, :]
    outputs, anchor = [], state
    for i in range(q.shape[2]):
        updates = pseudo_values[:, :, i] - weights[:, :, i] @ state
        outputs.append(queries[:, :, i] @ state + mixing[:, :, i] @ updates)
        state = last[:, :, i] * state + keys[:, :, i] @ updates
        if whole is not None:
            anchor = torch.where((whole > i).view(-1, 1, 1, 1), state, anchor)
    return torch.stack(outputs, dim=2), state, anchor

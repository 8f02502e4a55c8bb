"""Token mixers of the demo model in training form: gated delta net and gated attention.

Clean rows follow the commit formulas of the engine, noisy rows its previews. Know no experts.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from demo.streams import BLOCK, DemoConfig, Streams


class ZeroCentredNorm(nn.Module):
    """RMS norm with weight 1 + w, in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        x = x.float()
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * (1 + self.weight)


class GatedNorm(nn.Module):
    """w * rms(x) * silu(z)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        x = x.float()
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)
        return x * self.weight * F.silu(z.float())


def l2norm(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def invert_unit_lower(a: Tensor) -> Tensor:
    """(I + a)^-1 for strictly lower triangular a [.., T, T], T a power of two.

    Inverses of diagonal blocks are merged pairwise (1, 2, 4, ...): stable for equal keys, where a
    Neumann product is not.
    """
    size = a.shape[-1]
    index = torch.arange(size, device=a.device)
    inverse = torch.eye(size, device=a.device).expand_as(a)
    width = 1
    while width < size:
        same_pair = index[:, None] // (2 * width) == index[None, :] // (2 * width)
        lower_left = (index[:, None] // width % 2 == 1) & (index[None, :] // width % 2 == 0)
        coupling = a * (same_pair & lower_left)
        inverse = inverse - inverse @ coupling @ inverse
        width *= 2
    return inverse


class GatedDeltaNet(nn.Module):
    """Clean rows: causal gated delta rule. Noisy rows: block softmax with a history slot."""

    def __init__(self, config: DemoConfig) -> None:
        super().__init__()
        self.c = c = config
        hidden, values = c.hidden_size, c.linear_num_value_heads * c.linear_value_head_dim
        keys, heads = c.linear_num_key_heads * c.linear_key_head_dim, c.linear_num_value_heads
        self.sizes = (keys, keys, values)
        channels, kernel = 2 * keys + values, c.linear_conv_kernel_dim
        self.in_proj_qkv = nn.Linear(hidden, channels, bias=False)
        self.in_proj_z = nn.Linear(hidden, values, bias=False)
        self.in_proj_b = nn.Linear(hidden, heads, bias=False)
        self.in_proj_a = nn.Linear(hidden, heads, bias=False)
        self.out_proj = nn.Linear(values, hidden, bias=False)
        self.conv1d = nn.Conv1d(channels, channels, kernel, groups=channels, bias=False)
        self.conv_right_weight = nn.Parameter(torch.empty(channels, kernel - 1).uniform_(-0.3, 0.3))
        self.A_log = nn.Parameter(torch.empty(heads).uniform_(0.5, 4.0).log())
        self.dt_bias = nn.Parameter(torch.linspace(-4.0, -1.0, heads))
        self.bd_softmax_logit_scale = nn.Parameter(torch.full((heads,), 4.0))
        self.bd_softmax_history_bias = nn.Parameter(torch.ones(heads))
        self.bd_softmax_history_c = nn.Parameter(torch.zeros(heads))
        self.norm = GatedNorm(c.linear_value_head_dim, c.rms_norm_eps)

    def forward(self, x: Tensor, s: Streams) -> Tensor:
        n, rows, _ = x.shape
        length = s.clean_length
        u = self.in_proj_qkv(x).float()
        z = self.in_proj_z(x).view(n, rows, self.c.linear_num_value_heads, -1)
        clean_u = u[:, :length] * s.real[:, :length, None]
        clean, states = self.commit(clean_u, x[:, :length], s)
        noisy = self.preview(clean_u, u[:, length:], states, s)
        y = self.norm(torch.cat([clean, noisy], 1), z)
        return self.out_proj(y.flatten(2))

    def heads(self, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """conv output [.., channels] -> q, k [.., Hv, dk] l2-normalised, v [.., Hv, dv]."""
        c = self.c
        q, k, v = y.split(self.sizes, -1)
        groups = c.linear_num_value_heads // c.linear_num_key_heads
        q = l2norm(q.unflatten(-1, (c.linear_num_key_heads, -1))).repeat_interleave(groups, -2)
        k = l2norm(k.unflatten(-1, (c.linear_num_key_heads, -1))).repeat_interleave(groups, -2)
        return q, k, v.unflatten(-1, (c.linear_num_value_heads, -1))

    def commit(self, u: Tensor, x: Tensor, s: Streams) -> tuple[Tensor, Tensor]:
        """Clean rows -> outputs [N, T, Hv, dv], state before each chunk [N, C, Hv, dk, dv]."""
        taps = self.conv1d.weight[:, 0]
        kernel = taps.shape[1]
        length = u.shape[1]
        mixed = u * taps[:, -1]
        for back in range(1, kernel):
            same = F.pad((s.sample[:, back:] == s.sample[:, :-back]).float(), (back, 0))
            shifted = F.pad(u, (0, 0, back, 0))[:, :length] * same[:, :, None]
            mixed = mixed + shifted * taps[:, kernel - 1 - back]
        q, k, v = self.heads(F.silu(mixed))
        real = s.real[:, :length, None]
        beta = torch.sigmoid(self.in_proj_b(x).float()) * real
        g = -self.A_log.exp() * F.softplus(self.in_proj_a(x).float() + self.dt_bias) * real

        def chunks(t: Tensor) -> Tensor:  # [N, T, H, ..] -> [N, H, C, BLOCK, ..]
            return t.unflatten(1, (-1, BLOCK)).movedim(3, 1)

        q, k, v = chunks(q) * self.c.linear_key_head_dim**-0.5, chunks(k), chunks(v)
        beta, g = chunks(beta)[..., None], chunks(g).cumsum(-1)[..., None]
        decay = (g - g.transpose(-1, -2)).clamp(max=0.0).exp().tril()
        solve = invert_unit_lower((beta * (k @ k.transpose(-1, -2)) * decay).tril(-1))
        new_values, old_keys = solve @ (beta * v), solve @ (beta * g.exp() * k)
        scores, reads = q @ k.transpose(-1, -2) * decay, g.exp() * q
        last = g[..., -1:, :]
        writes = (k * (last - g).exp()).transpose(-1, -2)
        state = u.new_zeros(u.shape[0], q.shape[1], q.shape[-1], v.shape[-1])
        states, outputs = [], []
        for i in range(q.shape[2]):
            state = state * s.carries[:, i, None, None, None]
            states.append(state)
            update = new_values[:, :, i] - old_keys[:, :, i] @ state
            outputs.append(reads[:, :, i] @ state + scores[:, :, i] @ update)
            state = last[:, :, i].exp() * state + writes[:, :, i] @ update
        out = torch.stack(outputs, 2).flatten(2, 3).transpose(1, 2)
        return out, torch.stack(states, 1)

    def preview(self, clean_u: Tensor, u: Tensor, states: Tensor, s: Streams) -> Tensor:
        """Noisy rows [N, M * BLOCK, channels] -> [N, M * BLOCK, Hv, dv]."""
        c = self.c
        n, copies = s.chunk.shape
        taps, right = self.conv1d.weight[:, 0], self.conv_right_weight
        kernel = taps.shape[1]
        before = torch.arange(1 - kernel, 0, device=u.device)
        where = (s.chunk[:, :, None] * BLOCK + before).flatten(1)
        tail = clean_u.gather(1, where[:, :, None].expand(-1, -1, u.shape[-1]))
        tail = tail.unflatten(1, (copies, -1))
        u = torch.cat([tail, u.unflatten(1, (copies, BLOCK))], 2)
        u = F.pad(u, (0, 0, 0, kernel - 1))
        mixed = u[:, :, :BLOCK] * taps[:, 0]
        for j in range(1, kernel):
            mixed = mixed + u[:, :, j : j + BLOCK] * taps[:, j]
        for d in range(1, kernel):
            mixed = mixed + u[:, :, kernel - 1 + d : kernel - 1 + d + BLOCK] * right[:, d - 1]
        q, k, v = (t.movedim(3, 2) for t in self.heads(F.silu(mixed)))  # [N, copies, H, BLOCK, d]
        pick = s.chunk[:, :, None, None, None].expand(-1, -1, *states.shape[2:])
        history = q * c.linear_key_head_dim**-0.5 @ states.gather(1, pick)
        scale, bias, weight = (
            p[:, None, None]
            for p in (
                self.bd_softmax_logit_scale,
                self.bd_softmax_history_bias,
                self.bd_softmax_history_c,
            )
        )
        norm = (history.square().sum(-1, keepdim=True) + 1e-12).sqrt()
        logits = torch.cat([bias + weight * norm, scale * (q @ k.transpose(-1, -2))], -1)
        p = logits.softmax(-1)
        out = p[..., :1] * history + p[..., 1:] @ v
        return out.movedim(2, 3).flatten(1, 2)


class GatedAttention(nn.Module):
    """Softmax attention with q/k norm, partial rotary embedding and a sigmoid output gate."""

    def __init__(self, config: DemoConfig) -> None:
        super().__init__()
        self.c = c = config
        self.q_proj = nn.Linear(c.hidden_size, 2 * c.num_attention_heads * c.head_dim, bias=False)
        self.k_proj = nn.Linear(c.hidden_size, c.num_key_value_heads * c.head_dim, bias=False)
        self.v_proj = nn.Linear(c.hidden_size, c.num_key_value_heads * c.head_dim, bias=False)
        self.o_proj = nn.Linear(c.num_attention_heads * c.head_dim, c.hidden_size, bias=False)
        self.q_norm = ZeroCentredNorm(c.head_dim, c.rms_norm_eps)
        self.k_norm = ZeroCentredNorm(c.head_dim, c.rms_norm_eps)

    def forward(self, x: Tensor, s: Streams) -> Tensor:
        c = self.c
        n, rows, _ = x.shape
        q, gate = self.q_proj(x).view(n, rows, c.num_attention_heads, -1).chunk(2, -1)
        k = self.k_proj(x).view(n, rows, c.num_key_value_heads, -1)
        v = self.v_proj(x).view(n, rows, c.num_key_value_heads, -1)
        q, k = self.rotate(self.q_norm(q), s), self.rotate(self.k_norm(k), s)
        groups = c.num_attention_heads // c.num_key_value_heads
        k = k.repeat_interleave(groups, 1)
        v = v.transpose(1, 2).repeat_interleave(groups, 1)
        out = F.scaled_dot_product_attention(q, k.float(), v.float(), attn_mask=s.mask)
        out = out.transpose(1, 2) * torch.sigmoid(gate.float())
        return self.o_proj(out.flatten(2))

    def rotate(self, t: Tensor, s: Streams) -> Tensor:
        """[N, R, H, D] -> [N, H, R, D], the first dimensions rotated (half split)."""
        t = t.transpose(1, 2)
        half = s.cos.shape[-1]
        a, b, rest = t[..., :half], t[..., half : 2 * half], t[..., 2 * half :]
        return torch.cat([a * s.cos - b * s.sin, b * s.cos + a * s.sin, rest], -1)

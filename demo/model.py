"""The demo model in training form: whole sequences, both losses, gradients.

Same parameters and names as a `clover_moe` checkpoint, same formulas as the engine (a test compares
the logits of both). Knows nothing of caches, slots or serving.

Layout of a batch: samples are packed chunk by chunk (`BLOCK` tokens a chunk) into sequences. A
prompt is padded on the left so that it ends on a chunk boundary; the answer's chunks follow. The
clean stream [N, T] is causal. Beside it stand noisy copies of some answer chunks [N, M, BLOCK];
each sees the clean stream of its own sample before its chunk (keys, values, carried state,
convolution tail) and itself in both directions.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BLOCK = 16


@dataclass(frozen=True)
class DemoConfig:
    """Sizes under the names of the checkpoint's config.json."""

    vocab_size: int
    hidden_size: int = 128
    num_hidden_layers: int = 8
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 32
    linear_num_key_heads: int = 2
    linear_num_value_heads: int = 4
    linear_key_head_dim: int = 32
    linear_value_head_dim: int = 32
    linear_conv_kernel_dim: int = 4
    num_experts: int = 8
    num_experts_per_tok: int = 2
    moe_intermediate_size: int = 64
    shared_expert_intermediate_size: int = 64
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    partial_rotary_factor: float = 0.25

    def layer_type(self, layer: int) -> str:
        return "full_attention" if layer % 4 == 3 else "linear_attention"


@dataclass
class Streams:
    """What every layer needs besides the rows; built once per batch."""

    real: Tensor  # [N, T + M * BLOCK] 1.0 where a row holds a token, 0.0 on padding
    sample: Tensor  # [N, T] which sample a clean row belongs to
    chunk: Tensor  # [N, M] index of the clean chunk that each noisy block replaces
    carries: Tensor  # [N, C] 1.0 where a chunk continues the sample of the chunk before it
    mask: Tensor  # [N, 1, T + M * BLOCK, same] who may attend to whom
    cos: Tensor  # [N, 1, T + M * BLOCK, rotary / 2]
    sin: Tensor

    @property
    def clean_length(self) -> int:
        return self.sample.shape[1]


def build_streams(real: Tensor, sample: Tensor, chunk: Tensor, config: DemoConfig) -> Streams:
    """real [N, T], sample [N, C] (sample of each chunk), chunk [N, M]."""
    n, length = real.shape
    device = real.device
    clean = torch.arange(length, device=device).expand(n, length)
    offsets = torch.arange(BLOCK, device=device)
    noisy = (chunk[:, :, None] * BLOCK + offsets).flatten(1)
    positions = torch.cat([clean, noisy], 1)
    sample_of_row = sample.repeat_interleave(BLOCK, 1)
    sample_of_noisy = sample.gather(1, chunk).repeat_interleave(BLOCK, 1)
    block_start = chunk.repeat_interleave(BLOCK, 1) * BLOCK
    copy = torch.arange(chunk.shape[1], device=device).repeat_interleave(BLOCK)
    see_clean = torch.cat(
        [clean[:, :, None] >= clean[:, None, :], block_start[:, :, None] > clean[:, None, :]], 1
    )
    owner = torch.cat([sample_of_row, sample_of_noisy], 1)
    see_clean = see_clean & (owner[:, :, None] == sample_of_row[:, None, :])
    see_clean = see_clean & (real[:, None, :] > 0)
    see_noisy = torch.zeros(n, positions.shape[1], noisy.shape[1], dtype=torch.bool, device=device)
    see_noisy[:, length:] = copy[:, None] == copy[None, :]
    mask = torch.cat([see_clean, see_noisy], 2)
    # padding rows attend to themselves so that their softmax is defined
    mask = mask | torch.eye(positions.shape[1], dtype=torch.bool, device=device)
    rotary = int(config.head_dim * config.partial_rotary_factor)
    frequency = config.rope_theta ** (-torch.arange(0, rotary, 2, device=device) / rotary)
    angle = positions[:, None, :, None].float() * frequency
    carries = F.pad((sample[:, 1:] == sample[:, :-1]).float(), (1, 0))
    real = torch.cat([real, real.new_ones(noisy.shape)], 1)
    return Streams(real, sample_of_row, chunk, carries, mask[:, None], angle.cos(), angle.sin())


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


class Experts(nn.Module):
    """All routed experts, fused: gate_up_proj [E, 2I, H], down_proj [E, H, I]."""

    def __init__(self, c: DemoConfig) -> None:
        super().__init__()
        inner, hidden = c.moe_intermediate_size, c.hidden_size
        self.gate_up_proj = nn.Parameter(torch.randn(c.num_experts, 2 * inner, hidden) * 0.05)
        self.down_proj = nn.Parameter(torch.randn(c.num_experts, hidden, inner) * 0.05)


class SharedExpert(nn.Module):
    """The expert that every row takes."""

    def __init__(self, c: DemoConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(c.hidden_size, c.shared_expert_intermediate_size, bias=False)
        self.up_proj = nn.Linear(c.hidden_size, c.shared_expert_intermediate_size, bias=False)
        self.down_proj = nn.Linear(c.shared_expert_intermediate_size, c.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return y


class Dispatch(torch.autograd.Function):
    """Rows -> expert slots; both directions are gathers because a slot has at most one row."""

    @staticmethod
    def forward(ctx, x: Tensor, row_of_slot: Tensor, slot_of_row: Tensor) -> Tensor:
        ctx.save_for_backward(slot_of_row)
        return F.pad(x, (0, 0, 0, 1))[row_of_slot]

    @staticmethod
    def backward(ctx, grad: Tensor):
        (slot_of_row,) = ctx.saved_tensors
        return F.pad(grad, (0, 0, 0, 1))[slot_of_row].sum(1), None, None


class Combine(torch.autograd.Function):
    """Expert slots -> the k results of each row."""

    @staticmethod
    def forward(ctx, y: Tensor, slot_of_row: Tensor, choice_of_slot: Tensor) -> Tensor:
        ctx.save_for_backward(choice_of_slot)
        return F.pad(y, (0, 0, 0, 1))[slot_of_row]

    @staticmethod
    def backward(ctx, grad: Tensor):
        (choice_of_slot,) = ctx.saved_tensors
        return F.pad(grad.flatten(0, 1), (0, 0, 0, 1))[choice_of_slot], None, None


class SparseMoe(nn.Module):
    """Softmax router, top-k renormalised, experts with bounded slots, gated shared expert.

    An expert takes at most `SLACK` times its fair share of the rows of a batch (training only; the
    engine never drops). Padding rows take no slots.
    """

    SLACK = 1.5

    def __init__(self, config: DemoConfig) -> None:
        super().__init__()
        self.c = c = config
        self.gate = nn.Linear(c.hidden_size, c.num_experts, bias=False)
        self.experts = Experts(c)
        self.shared_expert = SharedExpert(c)
        self.shared_expert_gate = nn.Linear(c.hidden_size, 1, bias=False)

    def slots(self, chosen: Tensor, real: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
        """chosen [R, k] -> slot of each choice [R, k], row and choice of each slot [E * C], C."""
        c = self.c
        rows, k = chosen.shape
        capacity = int(rows * k * self.SLACK / c.num_experts)
        one_hot = (chosen[..., None] == torch.arange(c.num_experts)) & (real[:, None, None] > 0)
        rank = one_hot.flatten(0, 1).int().cumsum(0).view(one_hot.shape)
        rank = (rank * one_hot).sum(-1) - 1
        taken = (rank >= 0) & (rank < capacity)
        unused = c.num_experts * capacity
        slot = torch.where(taken, chosen * capacity + rank, unused)
        choice = torch.full((unused + 1,), rows * k).scatter(
            0, slot.flatten(), torch.arange(rows * k)
        )[:unused]
        return slot, choice // k, choice, capacity

    def forward(self, x: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """[N, R, H] -> output and the load-balancing loss (Switch Transformer, eq. 4)."""
        c = self.c
        shape = x.shape
        x, real = x.flatten(0, 1), real.flatten()
        p = F.linear(x.float(), self.gate.weight).float().softmax(-1)
        w, chosen = p.topk(c.num_experts_per_tok, -1)
        w = w / w.sum(-1, keepdim=True)
        with torch.no_grad():
            slot, row_of_slot, choice_of_slot, capacity = self.slots(chosen, real)
            used = (chosen[..., None] == torch.arange(c.num_experts)) & (real[:, None, None] > 0)
            load = used.float().sum((0, 1)) * c.num_experts / (real.sum() * c.num_experts_per_tok)
        balance = (load * (p * real[:, None]).sum(0)).sum() / real.sum()
        # autocast does not reach into autograd functions
        autocast = torch.is_autocast_enabled("cpu")
        dtype = torch.get_autocast_dtype("cpu") if autocast else x.dtype
        slots = Dispatch.apply(x.to(dtype), row_of_slot, slot)
        slots = slots.view(c.num_experts, capacity, -1)
        gate, up = (slots @ self.experts.gate_up_proj.transpose(1, 2)).chunk(2, -1)
        slots = (F.silu(gate) * up) @ self.experts.down_proj.transpose(1, 2)
        routed = Combine.apply(slots.flatten(0, 1), slot, choice_of_slot)
        routed = (routed * w[..., None].to(routed.dtype)).sum(1)
        shared = self.shared_expert(x)
        return (routed + shared * torch.sigmoid(self.shared_expert_gate(x))).view(shape), balance


class DecoderLayer(nn.Module):
    def __init__(self, config: DemoConfig, layer: int) -> None:
        super().__init__()
        self.is_attention = config.layer_type(layer) == "full_attention"
        if self.is_attention:
            self.self_attn = GatedAttention(config)
        else:
            self.linear_attn = GatedDeltaNet(config)
        self.mlp = SparseMoe(config)
        self.input_layernorm = ZeroCentredNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = ZeroCentredNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, s: Streams) -> tuple[Tensor, Tensor]:
        mixer = self.self_attn if self.is_attention else self.linear_attn
        x = x + mixer(self.input_layernorm(x), s)
        y, balance = self.mlp(self.post_attention_layernorm(x), s.real)
        return x + y, balance


class Trunk(nn.Module):
    def __init__(self, config: DemoConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        layers = [DecoderLayer(config, i) for i in range(config.num_hidden_layers)]
        self.layers = nn.ModuleList(layers)
        self.norm = ZeroCentredNorm(config.hidden_size, config.rms_norm_eps)


class DemoModel(nn.Module):
    """`clover_moe` for training; parameter names are those of the checkpoint."""

    def __init__(self, config: DemoConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Trunk(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        for name, p in self.named_parameters():
            if p.ndim == 2 and "conv" not in name:
                nn.init.normal_(p, std=0.05)
        nn.init.normal_(self.model.embed_tokens.weight, std=0.5)

    def forward(self, clean: Tensor, noisy: Tensor, s: Streams) -> tuple[Tensor, Tensor]:
        """clean ids [N, T], noisy ids [N, M, BLOCK] -> final hidden [N, T + M * BLOCK, H]."""
        x = self.model.embed_tokens(torch.cat([clean, noisy.flatten(1)], 1))
        balance = x.new_zeros(())
        for layer in self.model.layers:
            x, b = layer(x, s)
            balance = balance + b
        return self.model.norm(x), balance / len(self.model.layers)

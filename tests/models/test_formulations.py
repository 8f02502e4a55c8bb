"""Formulations A, B and C of hybrid previews, chosen by the config. Run: pytest tests/models"""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from blockdiff.checkpoint import load_model
from blockdiff.cli.logit_requests import parse_request
from blockdiff.config import LINEAR, parse_config
from blockdiff.core import Phase
from blockdiff.errors import ConfigError, RequestError
from blockdiff.models.base import RoundBatch, Segment
from blockdiff.models.layers.trace import Trace
from blockdiff.models.trunk import LanguageModel
from blockdiff.planning import read_model

from .checkpoints import TINY, random_tensors, write

# three value heads of one key head, a kernel of 3, an odd number of experts
ODD: dict[str, Any] = {
    **TINY,
    "num_attention_heads": 3,
    "linear_num_value_heads": 3,
    "linear_value_head_dim": 5,
    "linear_conv_kernel_dim": 3,
    "num_experts": 3,
}
QWEN = {**ODD, "model_type": "qwen3_5_moe"}


def with_formulation(letter: str, config: dict[str, Any] = ODD) -> dict[str, Any]:
    return {**config, "preview_formulation": letter}


def load(folder: Path, letter: str) -> LanguageModel:
    return load_model(write(folder, random_tensors(ODD), with_formulation(letter)))


def run(
    model: LanguageModel, rounds: list[list[Segment]], trace: Trace | None = None
) -> tuple[Tensor, list[Tensor]]:
    """Logits of the last round, and the caches' tensors after it."""
    caches = model.new_caches(2, 40)
    for segments in rounds:
        hidden = model.hidden(RoundBatch.from_segments(segments), caches, trace)
    return model.head(hidden), [caches.states, caches.tails, caches.keys, caches.values]


def rows(phase: Phase, slot: int, context: int, count: int) -> Segment:
    ids = [(7 * slot + 3 * context + 5 * i) % 31 for i in range(count)]
    return Segment(phase, slot, context, ids, range(count))


def test_defaults_and_bad_letters() -> None:
    assert parse_config(ODD).preview_formulation == "C"
    assert parse_config(QWEN).preview_formulation == "A"
    for letter in "ABC":
        for config in (ODD, QWEN):
            assert parse_config(with_formulation(letter, config)).preview_formulation == letter
    with pytest.raises(ConfigError, match="preview_formulation is 'D'; it must be one of"):
        parse_config(with_formulation("D"))


@pytest.mark.parametrize("letter", ["A", "B"])
def test_preview_tensors_of_clover_are_left_out_with_a_note(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, letter: str
) -> None:
    with caplog.at_level(logging.INFO):
        model = load(tmp_path / "with", letter)
    assert model.formulation == letter
    assert "bd_softmax_history_c is not used by this config (3 tensors)" in caplog.text
    bare = random_tensors(with_formulation(letter))
    assert len(bare) == len(random_tensors(ODD)) - 12
    load_model(write(tmp_path / "without", bare, with_formulation(letter)))
    for folder in (tmp_path / "with", tmp_path / "without"):
        assert "preview operator" not in read_model(folder).parts


def test_qwen_needs_the_tensors_for_c_and_refuses_them_otherwise(tmp_path: Path) -> None:
    tensors = random_tensors(ODD)
    clover = load_model(write(tmp_path / "clover", tensors, ODD))
    qwen = load_model(write(tmp_path / "c", tensors, with_formulation("C", QWEN)))
    rounds = [[rows(Phase.PREFILL, 0, 0, 6)], [rows(Phase.PREVIEW, 0, 6, 5)]]
    assert torch.equal(run(qwen, rounds)[0], run(clover, rounds)[0])
    with pytest.raises(ConfigError, match="bd_softmax_history_c is unexpected"):
        load_model(write(tmp_path / "a", tensors, QWEN))
    with pytest.raises(ConfigError, match="linear_attn.conv_right_weight is missing"):
        load_model(write(tmp_path / "bare", random_tensors(QWEN), with_formulation("C", QWEN)))


@pytest.mark.parametrize("letter", ["A", "B", "C"])
def test_logit_requests_know_the_formulation(tmp_path: Path, letter: str) -> None:
    model = load(tmp_path, letter)
    fields = {"phase": "preview", "input_ids": [1, 2], "block_ids": [3, 31]}
    for asked in "ABC":
        line = {**fields, "params": {"formulation": asked}}
        if asked == letter:
            assert parse_request(line, model.info, model.formulation).phase == "preview"
            continue
        with pytest.raises(RequestError, match=f"previews by '{letter}' only"):
            parse_request(line, model.info, model.formulation)


def test_only_previews_differ_and_they_write_nothing(tmp_path: Path) -> None:
    prefill = [rows(Phase.PREFILL, 0, 0, 7), rows(Phase.PREFILL, 1, 0, 1)]
    commit = [rows(Phase.COMMIT, 0, 7, 5)]
    preview = [rows(Phase.PREVIEW, 0, 12, 5), rows(Phase.PREVIEW, 1, 1, 3)]
    found = {}
    for letter in "ABC":
        model = load(tmp_path / letter, letter)
        committed, before = run(model, [prefill, commit])
        previewed, after = run(model, [prefill, commit, preview])
        assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
        found[letter] = (committed, before, previewed)
    for letter in "BC":
        assert torch.equal(found[letter][0], found["A"][0])
        for one, other in zip(found[letter][1], found["A"][1], strict=True):
            assert torch.equal(one, other)
        # far above rounding
        assert (found[letter][2] - found["A"][2]).abs().max() > 1e-2


@pytest.mark.parametrize("letter", ["A", "B", "C"])
def test_a_preview_beside_its_riding_commit_is_one_after_it(tmp_path: Path, letter: str) -> None:
    model = load(tmp_path, letter)
    prefill, commit = rows(Phase.PREFILL, 0, 0, 7), rows(Phase.COMMIT, 0, 7, 5)
    preview = rows(Phase.PREVIEW, 0, 12, 6)
    apart, _ = run(model, [[prefill], [commit], [preview]])
    together, _ = run(model, [[prefill], [commit, preview]])
    torch.testing.assert_close(together[5:], apart, atol=1e-5, rtol=1e-5)


def naive_mixer(weights: dict[str, Tensor], x: Tensor, first: Tensor, tail: Tensor) -> Tensor:
    """Formulation B of one layer in float64, row by row: x [T, H] -> [T, H]."""
    own = {name: tensor.double() for name, tensor in weights.items()}
    x, first, tail = x.double(), first.double(), tail.double()
    heads, key_dim, value_dim = first.shape
    u, z = x @ own["in_proj_qkv.weight"].T, x @ own["in_proj_z.weight"].T
    beta = (x @ own["in_proj_b.weight"].T).sigmoid()
    rate = functional.softplus(x @ own["in_proj_a.weight"].T + own["dt_bias"])
    decay = (-own["A_log"].exp() * rate).exp()
    taps, count = own["conv1d.weight"].squeeze(1), x.shape[0]
    reach = taps.shape[1] - 1
    left = torch.cat((tail, u, torch.zeros(reach, u.shape[1], dtype=u.dtype)))
    rows = []
    for t in range(count):
        y = sum(taps[:, reach - d] * left[reach + t - d] for d in range(reach + 1))
        y = y + sum(taps[:, reach - d] * left[reach + t + d] for d in range(1, reach + 1))
        rows.append(functional.silu(y))
    q, k, v = torch.stack(rows).split((key_dim, key_dim, heads * value_dim), dim=1)
    q, k = (y / (y.pow(2).sum(1, keepdim=True) + 1e-6).sqrt() for y in (q, k))
    v, z = v.view(count, heads, value_dim), z.view(count, heads, value_dim)
    mixed = torch.zeros_like(v)
    for h in range(heads):

        def write(state: Tensor, t: int, h: int = h) -> Tensor:
            state = decay[t, h] * (state - beta[t, h] * torch.outer(k[t], k[t] @ state))
            return state + beta[t, h] * torch.outer(k[t], v[t, h])

        for i in range(count):
            ahead, behind = first[h], torch.zeros_like(first[h])
            for t in range(i + 1):
                ahead = write(ahead, t)
            for t in reversed(range(i + 1, count)):
                behind = write(behind, t)
            mixed[i, h] = (ahead + behind).T @ q[i] * key_dim**-0.5
    scale = (mixed.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()
    normed = mixed * scale * own["norm.weight"] * functional.silu(z)
    return normed.flatten(1) @ own["out_proj.weight"].T


@pytest.mark.parametrize(("history", "count"), [(0, 5), (9, 1), (13, 8), (2, 7)])
def test_b_is_the_naive_computation_in_every_layer(
    tmp_path: Path, history: int, count: int
) -> None:
    tensors = random_tensors(with_formulation("B"))
    model = load_model(write(tmp_path, tensors, with_formulation("B")))
    before = [[rows(Phase.PREFILL, 0, 0, history)]] if history else []
    trace = Trace()
    # a longer preview beside it, so that the rows looked at are padded
    previews = [rows(Phase.PREVIEW, 0, history, count), rows(Phase.PREVIEW, 1, 0, 11)]
    _, (states, tails, *_) = run(model, [*before, previews], trace)
    layers = [i for i, kind in enumerate(model.config.layer_types) if kind == LINEAR]
    for index, layer in enumerate(layers):
        own = f"layers.{layer}.linear_attn."
        weights = {n.removeprefix(own): t for n, t in tensors.items() if n.startswith(own)}
        inputs = trace.tensors["mixer_input"][layer][:count]
        got = trace.tensors["mixer_output"][layer][:count]
        want = naive_mixer(weights, inputs, states[index, 0], tails[index, 0])
        torch.testing.assert_close(got.double(), want, atol=1e-5, rtol=1e-4)

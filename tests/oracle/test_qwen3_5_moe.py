"""Random tiny Qwen3.5-MoE models in float32. Run: pytest tests/oracle"""

from contextlib import AbstractContextManager
from pathlib import Path

import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

from blockdiff.checkpoint import load_model
from blockdiff.config import FULL, LINEAR

from .cases import VOCABULARY, Case, both_sides, bounded, draw_case
from .checkpoints import random_model
from .sides import Ours, Reference, assert_close


@st.composite
def cases(draw: st.DrawFn) -> Case:
    kv_heads, key_heads = draw(st.sampled_from([1, 2, 3])), draw(st.sampled_from([1, 2, 3]))
    rotary_dim = draw(st.sampled_from([2, 4]))
    head_dim = rotary_dim * draw(st.sampled_from([1, 2, 4]))
    experts = draw(st.integers(1, 5))
    types = [FULL, LINEAR, *draw(st.lists(st.sampled_from([FULL, LINEAR]), max_size=2))]
    config = {
        "vocab_size": VOCABULARY,
        "hidden_size": draw(st.integers(8, 20)),
        "num_hidden_layers": len(types),
        "layer_types": draw(st.permutations(types)),
        "num_attention_heads": kv_heads * draw(st.sampled_from([1, 3])),
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": key_heads * draw(st.sampled_from([1, 2, 3])),
        "linear_key_head_dim": draw(st.integers(1, 8)),
        "linear_value_head_dim": draw(st.integers(1, 8)),
        "linear_conv_kernel_dim": draw(st.integers(2, 5)),
        "num_experts": experts,
        "num_experts_per_tok": draw(st.integers(1, experts)),
        "moe_intermediate_size": draw(st.integers(1, 8)),
        "shared_expert_intermediate_size": draw(st.integers(1, 12)),
        "tie_word_embeddings": draw(st.booleans()),
        "max_position_embeddings": 64,
        # a small one lets norms of almost nothing amplify rounding a thousandfold
        "rms_norm_eps": draw(st.sampled_from([1e-3, 1e-2])),
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": draw(st.sampled_from([100.0, 1e4, 1e7])),
            "partial_rotary_factor": rotary_dim / head_dim,
            "mrope_section": [rotary_dim // 2, 0, 0],
            "mrope_interleaved": True,
        },
    }
    return draw_case(draw, config)


def sides(case: Case) -> AbstractContextManager[tuple[Ours, Reference]]:
    config = Qwen3_5MoeTextConfig(**case.config, experts_implementation="eager")
    return both_sides(case, lambda: Qwen3_5MoeForCausalLM(config), is_hybrid=True)


@bounded(20)
@given(cases(), st.integers(1, 9))
def test_prefill_in_one_piece_and_in_chunks(case: Case, size: int) -> None:
    with sides(case) as (ours, reference):
        want = reference.commit(case.prompt)
        assert_close(ours.commit(case.prompt), want)
        chunked = Ours(ours.model, len(case.prompt))
        pieces = [case.prompt[i : i + size] for i in range(0, len(case.prompt), size)]
        assert_close(torch.cat([chunked.commit(piece) for piece in pieces]), want)


@bounded(15)
@given(cases())
def test_autoregressive_continuation(case: Case) -> None:
    with sides(case) as (ours, reference):
        assert_close(ours.commit(case.prompt), reference.commit(case.prompt))
        for token in case.block:
            assert_close(ours.commit([token]), reference.commit([token]))


@bounded(20)
@given(cases(), st.booleans())
def test_previews_by_formulation_a(case: Case, has_history: bool) -> None:
    with sides(case) as (ours, reference):
        if has_history:
            ours.commit(case.prompt)
            reference.commit(case.prompt)
        assert ours.model.formulation == "A"
        want = reference.preview(case.block)
        assert_close(ours.preview(case.block), want)
        # a second one finds what the first one found
        assert_close(ours.preview(case.block), want)


@bounded(15)
@given(cases())
def test_states_after_a_commit_that_follows_a_preview(case: Case) -> None:
    with sides(case) as (ours, reference):
        ours.commit(case.prompt)
        reference.commit(case.prompt)
        ours.preview(case.block)
        assert_close(ours.commit(case.block), reference.commit(case.block))
        kinds, caches, cache = ours.model.config.layer_types, ours.caches, reference.cache
        for index, layer in enumerate(i for i, kind in enumerate(kinds) if kind == LINEAR):
            assert_close(caches.states[index, ours.slot], cache.get_recurrent_state(layer)[0])
            tail = cache.get_conv_state(layer)[0][:, 1:]
            assert_close(caches.tails[index, ours.slot].t(), tail)
        for index, layer in enumerate(i for i, kind in enumerate(kinds) if kind == FULL):
            stored = cache.layers[layer]
            keys, values = caches.committed(index, ours.slot, ours.length)
            assert_close(keys, stored.keys[0])
            assert_close(values, stored.values[0])
        others = caches.keys[:, :, : caches.room.pages_per_slot]
        assert not caches.states[:, 0].any() and not others.any()


def test_a_folder_that_transformers_saved(tmp_path: Path) -> None:
    config = Qwen3_5MoeTextConfig(
        vocab_size=VOCABULARY,
        hidden_size=12,
        num_hidden_layers=4,
        num_attention_heads=3,
        num_key_value_heads=1,
        head_dim=8,
        linear_num_key_heads=1,
        linear_num_value_heads=3,
        linear_key_head_dim=4,
        linear_value_head_dim=5,
        num_experts=3,
        num_experts_per_tok=2,
        moe_intermediate_size=6,
        shared_expert_intermediate_size=8,
        experts_implementation="eager",
    )
    model = random_model(lambda: Qwen3_5MoeForCausalLM(config), 1)
    model.save_pretrained(tmp_path)
    ours = Ours(load_model(tmp_path), 16)
    prompt = list(range(11))
    assert_close(ours.commit(prompt), Reference(model, is_hybrid=True).commit(prompt))

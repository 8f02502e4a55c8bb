"""Random tiny Qwen3 and Qwen3-MoE models in float32. Run: pytest tests/oracle"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from blockdiff.checkpoint import load_model
from blockdiff.core import Mode
from blockdiff.engine import Engine, EngineConfig
from tests.engine.fakes import Array, FakeModel, decode_alone, ids, request, run

from .cases import VOCABULARY, Case, both_sides, bounded, draw_case
from .checkpoints import random_model
from .sides import Ours, Reference, assert_close

MASK = VOCABULARY - 1


@st.composite
def cases(draw: st.DrawFn) -> Case:
    kv_heads, layers = draw(st.sampled_from([1, 2, 3])), draw(st.integers(1, 3))
    experts = draw(st.integers(1, 5))
    config = {
        "vocab_size": VOCABULARY,
        "hidden_size": draw(st.integers(8, 20)),
        "intermediate_size": draw(st.integers(1, 12)),
        "num_hidden_layers": layers,
        "num_attention_heads": kv_heads * draw(st.sampled_from([1, 3])),
        "num_key_value_heads": kv_heads,
        "head_dim": draw(st.sampled_from([2, 4, 8])),
        "tie_word_embeddings": draw(st.booleans()),
        "max_position_embeddings": 96,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": draw(st.sampled_from([100.0, 1e4, 1e6])),
        },
    }
    if draw(st.booleans()):
        config |= {
            "num_experts": experts,
            "num_experts_per_tok": draw(st.integers(1, experts)),
            "moe_intermediate_size": draw(st.integers(1, 8)),
            "norm_topk_prob": draw(st.booleans()),
            "decoder_sparse_step": draw(st.integers(1, 2)),
            "mlp_only_layers": draw(st.lists(st.integers(0, layers - 1), max_size=1)),
        }
    return draw_case(draw, config)


def make(config: dict[str, Any]) -> Any:
    if "num_experts" in config:
        return Qwen3MoeForCausalLM(Qwen3MoeConfig(**config, experts_implementation="eager"))
    return Qwen3ForCausalLM(Qwen3Config(**config))


def sides(case: Case, **keys: Any) -> AbstractContextManager[tuple[Ours, Reference]]:
    return both_sides(case, lambda: make(case.config), is_hybrid=False, **keys)


@bounded(40)
@given(cases(), st.integers(1, 9))
def test_prefill_in_one_piece_and_in_chunks(case: Case, size: int) -> None:
    with sides(case) as (ours, reference):
        want = reference.commit(case.prompt)
        assert_close(ours.commit(case.prompt), want)
        chunked = Ours(ours.model, len(case.prompt))
        pieces = [case.prompt[i : i + size] for i in range(0, len(case.prompt), size)]
        assert_close(torch.cat([chunked.commit(piece) for piece in pieces]), want)


@bounded(30)
@given(cases(), st.booleans())
def test_previews_see_their_block_and_leave_nothing(case: Case, has_history: bool) -> None:
    with sides(case) as (ours, reference):
        if has_history:
            assert_close(ours.commit(case.prompt), reference.commit(case.prompt))
        assert_close(ours.preview(case.block), reference.preview(case.block))
        assert_close(ours.commit(case.block), reference.commit(case.block))
        for layer, stored in enumerate(reference.cache.layers):
            keys, values = ours.caches.committed(layer, ours.slot, ours.length)
            assert_close(keys, stored.keys[0])
            assert_close(values, stored.values[0])


@bounded(15)
@given(cases())
def test_the_engine_decodes_token_by_token_without_a_mask_token(case: Case) -> None:
    with sides(case) as (ours, reference):
        assert ours.model.info.mask_token_id < 0
        row, output = reference.commit(case.prompt)[-1], list[int]()
        for _ in range(6):
            output.append(int(row.argmax()))
            row = reference.commit(output[-1:])[-1]
        wanted = request(1, case.prompt, max_tokens=6, mode=Mode.AUTOREGRESSIVE)
        engine = Engine(ours.model, EngineConfig(max_context=96))
        assert ids(run(engine, [wanted])[1]) == output


class Recomputed(FakeModel):
    """Rows of the reference, each from nothing."""

    reference: Reference

    def rows(self, prefix: Sequence[int], seen: Sequence[int], is_preview: bool) -> Array:
        fresh = Reference(self.reference.model, is_hybrid=False)
        if prefix:
            fresh.commit(prefix)
        logits: Array = (fresh.preview(seen) if is_preview else fresh.commit(seen)).numpy()
        return logits


@bounded(15)
@given(cases(), st.sampled_from(["prompt_end", "zero"]), st.sampled_from([0.2, 0.5, 0.9]))
def test_the_engine_decodes_blocks_with_one(case: Case, anchor: str, threshold: float) -> None:
    keys = {"mask_token_id": MASK, "block_size": len(case.block), "block_anchor": anchor}
    with sides(case, **keys) as (ours, reference):
        assert ours.model.info.block_anchor == anchor
        recomputed = Recomputed(ours.model.info)
        recomputed.reference = reference
        wanted = request(1, case.prompt, max_tokens=len(case.block) + 3, threshold=threshold)
        engine = Engine(ours.model, EngineConfig(max_context=96))
        assert ids(run(engine, [wanted])[1]) == decode_alone(recomputed, wanted)[0]


def test_a_folder_that_transformers_saved(tmp_path: Path) -> None:
    config = Qwen3MoeConfig(
        vocab_size=VOCABULARY,
        hidden_size=12,
        intermediate_size=10,
        num_hidden_layers=3,
        num_attention_heads=3,
        num_key_value_heads=1,
        num_experts=3,
        num_experts_per_tok=2,
        moe_intermediate_size=6,
        decoder_sparse_step=2,
        experts_implementation="eager",
    )
    model = random_model(lambda: Qwen3MoeForCausalLM(config), 1)
    model.save_pretrained(tmp_path)
    ours = Ours(load_model(tmp_path), 16)
    prompt = list(range(11))
    assert_close(ours.commit(prompt), Reference(model, is_hybrid=False).commit(prompt))

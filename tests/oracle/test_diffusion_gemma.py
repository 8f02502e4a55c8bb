"""DiffusionGemma of any shape against transformers' own. Run: pytest tests/oracle

The reference is ``DiffusionGemmaForBlockDiffusion`` of transformers 5.24.0 with random weights,
saved by it and loaded here, so its file layout is covered too.
"""

import tempfile
from typing import Any, NamedTuple

import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import Phase as Phases
from hypothesis import strategies as st
from torch import Tensor

from blockdiff.checkpoint import load_model
from blockdiff.core import Phase
from blockdiff.models.base import RoundBatch, Segment
from blockdiff.models.diffusion_gemma import DiffusionGemmaModel

VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "global_head_dim": 16,
    "patch_size": 4,
    "pooling_kernel_size": 1,
    "position_embedding_size": 8,
}
VOCAB = 40


class Case(NamedTuple):
    """One model and one request."""

    text: dict[str, Any]
    canvas_length: int
    prompt_length: int
    first_chunk: int
    seed: int


@st.composite
def made_cases(draw: st.DrawFn) -> Case:
    heads = draw(st.sampled_from([1, 2, 3, 5, 6]))
    divisors = [n for n in range(1, heads + 1) if heads % n == 0]
    experts = draw(st.integers(1, 5))
    kinds = draw(st.lists(st.sampled_from(["sliding_attention", "full_attention"]), max_size=3))
    canvas = draw(st.integers(1, 6))
    prompt = draw(st.integers(1, 3 * canvas + 1))
    text = {
        "vocab_size": VOCAB,
        "hidden_size": draw(st.sampled_from([8, 12, 20])),
        "intermediate_size": draw(st.sampled_from([8, 14])),
        "num_attention_heads": heads,
        "num_key_value_heads": draw(st.sampled_from(divisors)),
        "num_global_key_value_heads": draw(st.sampled_from([None, *divisors])),
        "head_dim": draw(st.sampled_from([4, 6, 8])),
        "global_head_dim": draw(st.sampled_from([8, 12, 16])),
        "num_experts": experts,
        "top_k_experts": draw(st.integers(1, experts)),
        "moe_intermediate_size": draw(st.sampled_from([4, 12])),
        "num_hidden_layers": len(kinds) + 1,
        "layer_types": [*kinds, "full_attention"],
        "sliding_window": draw(st.integers(2, 3 * canvas + 3)),
        "final_logit_softcapping": draw(st.sampled_from([5.0, 30.0])),
    }
    return Case(text, canvas, prompt, draw(st.integers(1, prompt)), draw(st.integers(0, 99)))


def make_reference(case: Case) -> Any:
    """A random model; scalars and norms are random too, unlike in a fresh one."""
    config = transformers.DiffusionGemmaConfig(
        text_config=transformers.DiffusionGemmaTextConfig(**case.text),
        vision_config=transformers.AutoConfig.for_model("gemma4_vision", **VISION),
        canvas_length=case.canvas_length,
        image_token_id=VOCAB - 1,
        boi_token_id=VOCAB - 2,
        eoi_token_id=VOCAB - 3,
    )
    model = transformers.DiffusionGemmaForBlockDiffusion(config).eval()
    generator = torch.Generator().manual_seed(case.seed)
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if name.endswith("embed_scale"):
                continue  # a constant of the architecture
            if name.endswith(("norm.weight", "scale", "layer_scalar")) or "layernorm" in name:
                tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
            elif name.endswith(("weight", "_proj")):
                tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.4)
    return model


def load(reference: Any) -> DiffusionGemmaModel:
    with tempfile.TemporaryDirectory() as folder:
        reference.save_pretrained(folder)
        model = load_model(folder)
    assert isinstance(model, DiffusionGemmaModel)
    return model


def assert_close(got: Tensor, want: Tensor, what: str) -> None:
    torch.testing.assert_close(got, want, atol=2e-4, rtol=2e-4, msg=lambda text: f"{what}: {text}")


@given(case=made_cases())
@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    phases=[Phases.explicit, Phases.generate],  # an example is small as it is
    suppress_health_check=[HealthCheck.too_slow],
)
def test_encoder_and_decoder(case: Case) -> None:
    reference = make_reference(case)
    model = load(reference)
    generator = torch.Generator().manual_seed(case.seed)
    prompt = torch.randint(0, VOCAB - 3, (case.prompt_length,), generator=generator)
    canvas = torch.randint(0, VOCAB - 3, (case.canvas_length,), generator=generator)
    before = 3 * torch.randn(case.canvas_length, VOCAB, generator=generator)
    caches = model.new_caches(2, case.prompt_length + case.canvas_length)

    def run(phase: Phase, context: int, ids: Tensor) -> Tensor:
        segment = Segment(phase, 1, context, ids.tolist(), range(len(ids)))
        return model.hidden(RoundBatch.from_segments([segment]), caches)

    with torch.no_grad():
        given = {"decoder_input_ids": canvas[None]}
        first = reference(input_ids=prompt[None], **given)
        later = reference(input_ids=prompt[None], self_conditioning_logits=before[None], **given)
    parts = (prompt[: case.first_chunk], prompt[case.first_chunk :])
    hidden = [run(Phase.PREFILL, 0, parts[0])]
    if len(parts[1]):
        hidden.append(run(Phase.PREFILL, case.first_chunk, parts[1]))
    assert_close(torch.cat(hidden), first.encoder_last_hidden_state[0], "encoder rows")
    for index, layer in enumerate(first.cache.layers):
        keys, values = caches.committed(index, 1, case.prompt_length)
        assert_close(keys, layer.keys[0], f"keys of layer {index}")
        assert_close(values, layer.values[0], f"values of layer {index}")
    got = model.head(run(Phase.PREVIEW, case.prompt_length, canvas))
    assert_close(got, first.logits[0], "first step")
    places = torch.arange(case.canvas_length)
    model.store_signals(caches, model.expect(before), torch.ones_like(places), places)
    got = model.head(run(Phase.PREVIEW, case.prompt_length, canvas))
    assert_close(got, later.logits[0], "self-conditioned step")

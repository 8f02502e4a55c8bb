"""transformers' Qwen3-MoE as the model object of the loops that bring none of their own.

SDAR-MoE has its tensors; what makes it block-causal is the mask, which the loops give. Knows no
loop.
"""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache

from perf.peers.protocol import Setup


class Qwen3Moe:
    """A loaded model that counts its forwards."""

    def __init__(self, setup: Setup) -> None:
        torch.set_num_threads(setup.threads)
        self.model = AutoModelForCausalLM.from_pretrained(
            f"{setup.folder}/qwen3_moe",
            dtype=torch.float32,
            attn_implementation="sdpa",
            experts_implementation=EXPERTS,
        ).eval()
        self.forwards = 0

    @torch.inference_mode()
    def forward(
        self,
        ids: Tensor,
        visible: Tensor,
        first: int = 0,
        cache: DynamicCache | None = None,
        keep: int = 1,
    ) -> Tensor:
        """Logits [N, keep, V] of the last ``keep`` of ids [N, T], at positions from ``first``.

        visible [T, first + T] bool: what each row sees. ``cache`` is extended in place.
        """
        self.forwards += 1
        positions = torch.arange(first, first + ids.shape[1])
        return self.model(
            input_ids=ids,
            attention_mask=visible[None, None].expand(len(ids), 1, -1, -1),
            position_ids=positions[None].expand(len(ids), -1),
            cache=cache,
            use_cache=cache is not None,
            logits_to_keep=keep,
        ).logits


# the fastest of transformers' ways on a CPU for these sizes
EXPERTS = "grouped_mm"


def block_causal(first: int, rows: int, block: int) -> Tensor:
    """[rows, first + rows] bool: rows from position ``first`` see their block and those before."""
    blocks = torch.arange(first + rows) // block
    return blocks[None, :] <= blocks[first:, None]

"""What ``blockdiff generate`` prints of one outcome, as JSON.

Knows outcomes only; nothing of engines or flags.
"""

from collections.abc import Sequence
from typing import Any

from blockdiff.core import BlockResult
from blockdiff.jobs import Job, Outcome, output_text
from blockdiff.text import Tokenizer


def _block(block: BlockResult, job: Job) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "index": block.block_index,
        "token_ids": list(block.token_ids),
        "denoise_steps": block.denoise_steps,
        "threshold": block.threshold,
        "step_cap": block.step_cap,
    }
    if job.shows_log_probs:
        shown["log_probs"] = list(block.log_probs)
    if job.request.num_top_log_probs:
        shown["top_log_probs"] = [
            [{"id": token, "log_prob": value} for token, value in top]
            for top in block.top_log_probs
        ]
    if job.request.wants_step_map:
        shown["step_map"] = list(block.settled_steps)
    return shown


def as_json(
    outcome: Outcome, model_eos: Sequence[int], tokenizer: Tokenizer | None
) -> dict[str, Any]:
    """The object that ``generate`` prints for one request."""
    request, counts = outcome.job.request, outcome.forwards
    text = None
    if tokenizer is not None:
        text = output_text(outcome, model_eos, tokenizer)
    reason = outcome.final.finish_reason
    shown: dict[str, Any] = {"name": outcome.job.name} if outcome.job.name is not None else {}
    shown |= {
        "output_ids": outcome.output_ids,
        "text": text,
        "finish_reason": None if reason is None else str(reason),
        "stop_reason": outcome.final.stop_reason,
        "num_input_tokens": len(request.input_ids),
        "num_output_tokens": len(outcome.output_ids),
        "forwards": {
            "prefill": counts.prefill,
            "preview": counts.preview,
            "commit": counts.commit,
            "commit_fused": counts.commit_fused,
        },
        "blocks": [_block(block, outcome.job) for block in outcome.blocks],
        "seconds": round(outcome.seconds, 6),
    }
    if outcome.final.error is not None:
        shown["error"] = outcome.final.error
    return shown

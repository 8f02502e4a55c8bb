"""Blocks as they are handed out, from the lines of the slot table.

Knows nothing of why a block ends or of what follows it.
"""

from blockdiff.core import BlockResult
from blockdiff.scheduler.arrays import Ints
from blockdiff.scheduler.table import SlotTable
from blockdiff.scheduler.traces import NO_TRACE


def block_results(table: SlotTable, slots: Ints, ends: Ints) -> list[BlockResult]:
    """Open blocks of ``slots`` [N] up to places ``ends`` [N], without prompts; none is final."""
    is_traced = table.is_traced[slots].any()
    traces = table.traces.of(table, slots, ends) if is_traced else [NO_TRACE] * len(slots)
    lines = zip(
        table.uid[slots].tolist(),
        table.first_response[slots].tolist(),
        ends.tolist(),
        table.canvas[slots].tolist(),
        table.log_probs[slots].tolist(),
        table.block_index[slots].tolist(),
        (table.earlier_steps[slots] + table.step[slots]).tolist(),
        table.prompt_length[slots].tolist(),
        table.thresholds_used(slots),
        table.schedule_steps[slots].tolist(),
        traces,
        strict=True,
    )
    return [
        BlockResult(
            request_uid=uid,
            block_index=index,
            token_ids=tuple(tokens[first:end]),
            log_probs=tuple(log_probs[first:end]),
            denoise_steps=steps,
            num_input_tokens=length,
            threshold=threshold,
            step_cap=cap or None,
            settled_steps=trace.steps,
            top_log_probs=trace.top,
        )
        for uid, first, end, tokens, log_probs, index, steps, length, threshold, cap, trace in lines
    ]

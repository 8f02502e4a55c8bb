"""From byte budgets to pages and state lines, and these from memory that there is.

Knows the model's sizes and the engine's settings; knows nothing of requests.
"""

import torch

from blockdiff.core import Request
from blockdiff.engine.config import EngineConfig
from blockdiff.errors import ConfigError, RequestError
from blockdiff.host_memory import available_memory
from blockdiff.models.base import BlockDiffusionModel, ModelCaches
from blockdiff.pages import (
    EMPTY_PAGES,
    SNAPSHOTS_PER_SLOT,
    CachePool,
    count_pages,
    default_page_length,
)
from blockdiff.scheduler import MemoryRules

# What a row of a step has in memory at one time, in hidden rows: projections, the inner and outer
# rows of all its experts, and as much again for what allocators lose.
STEP_WIDTH = 64


def plan_memory(model: BlockDiffusionModel, config: EngineConfig, max_context: int) -> MemoryRules:
    """How many pages and state lines the budgets of ``config`` allow.

    Raises ConfigError when a budget does not even hold one block, or a page is no multiple of it.
    """
    block = model.info.block_length
    page_length = config.page_length or default_page_length(block)
    _check_page_length(page_length, block, max_context)
    sizes = model.cache_sizes(page_length, max_context)
    pages_per_slot = count_pages(max_context, page_length)
    pages = config.max_slots * pages_per_slot
    if config.kv_cache_bytes is not None and sizes.page_bytes:
        pages = config.kv_cache_bytes // sizes.page_bytes - EMPTY_PAGES
        if pages < 1:
            size = (1 + EMPTY_PAGES) * sizes.page_bytes
            least = f"one page of {page_length} tokens and an empty one take {size} bytes"
            raise ConfigError(f"kv_cache_bytes: {config.kv_cache_bytes} is too little; {least}")
    return MemoryRules(
        pages=pages,
        page_length=page_length,
        pages_per_slot=min(pages_per_slot, pages),
        snapshots=_snapshots(config, sizes.state_bytes),
        snapshot_interval=config.snapshot_interval,
        has_states=sizes.state_bytes > 0,
        keeps_prefixes=config.prefix_cache,
    )


def _check_page_length(page_length: int, block: int, max_context: int) -> None:
    longest = max(default_page_length(block), count_pages(max_context, block) * block)
    if page_length % block or page_length > longest:
        allowed = f"a multiple of the model's block length {block}, up to {longest}"
        raise ConfigError(f"page_length: {page_length} is not allowed; it must be {allowed}")


def _snapshots(config: EngineConfig, state_bytes: int) -> int:
    budget = config.snapshot_bytes
    if not (config.prefix_cache and state_bytes):
        why = "without prefix_cache" if state_bytes else "for a model without states"
        _refuse_unused(config, why)
        return 0
    if budget is None:
        return SNAPSHOTS_PER_SLOT * config.max_slots
    if 0 < budget < state_bytes:
        raise ConfigError(
            f"snapshot_bytes: {budget} is too little; one state takes {state_bytes} bytes, "
            "0 keeps none"
        )
    return budget // state_bytes


def _refuse_unused(config: EngineConfig, why: str) -> None:
    """Settings of kept states that were given to an engine that keeps none."""
    if config.snapshot_bytes:
        raise ConfigError(f"snapshot_bytes: {config.snapshot_bytes} has no use {why}; leave it out")
    if config.snapshot_interval != EngineConfig.snapshot_interval:
        raise ConfigError(
            f"snapshot_interval: {config.snapshot_interval} has no use {why}; leave it out"
        )


def allocate(
    model: BlockDiffusionModel,
    config: EngineConfig,
    rules: MemoryRules,
    max_context: int,
    reserved: int = 0,
) -> ModelCaches:
    """Caches by ``rules``; ConfigError, with the numbers, where there is not that much memory.

    On the host untouched pages cost nothing, so a budget is compared with what is available; on a
    GPU the caches must leave the ``reserved`` bytes of captured steps.
    """
    sizes = model.cache_sizes(rules.page_length, max_context)
    needed = (rules.pages + EMPTY_PAGES) * sizes.page_bytes
    needed += (config.max_slots + rules.snapshots) * sizes.state_bytes
    has_budget = bool(config.kv_cache_bytes or config.snapshot_bytes)
    if has_budget and model.device.type == "cpu":
        available = available_memory()
        if needed > available:
            raise ConfigError(_too_much(needed, f"{available} are available"))
    free = free_memory(model.device)
    if free is not None and needed + reserved > free:
        raise ConfigError(_too_much(needed, f"captured steps {reserved}, {free} are free"))
    pool = CachePool(rules.pages + EMPTY_PAGES, rules.page_length, rules.snapshots)
    try:
        return model.new_caches(config.max_slots, max_context, pool)
    except (MemoryError, RuntimeError) as error:
        raise ConfigError(_too_much(needed, "the device does not have them")) from error


def free_memory(device: torch.device) -> int | None:
    """Bytes that a GPU has left for this process; None for a host, where pages come when used."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None


def step_bytes(rows: int, hidden_size: int, dtype: torch.dtype) -> int:
    """About what captured steps of up to so many rows compute in: they share one pool."""
    return rows * STEP_WIDTH * hidden_size * dtype.itemsize


def _too_much(needed: int, why: str) -> str:
    return (
        f"kv_cache_bytes, snapshot_bytes: the caches take {needed} bytes and {why}; "
        "lower these, max_slots or max_context"
    )


def longest_request(rules: MemoryRules) -> int:
    """Tokens of prompt and output that all pages together hold; the last one is never committed."""
    return rules.pages * rules.page_length + 1


def check_fits(request: Request, rules: MemoryRules) -> None:
    """Raise RequestError if all pages together could not hold ``request``."""
    prompt, room = len(request.input_ids), longest_request(rules)
    if prompt + request.max_tokens > room:
        needed = count_pages(prompt + request.max_tokens - 1, rules.page_length)
        raise RequestError(
            f"max_tokens: {prompt} prompt tokens and {request.max_tokens} more need "
            f"{needed} pages; the cache has {rules.pages} pages of {rules.page_length} tokens, "
            f"allowed together: up to {room}"
        )

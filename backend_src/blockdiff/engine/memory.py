"""From byte budgets to pages and state lines, before anything is allocated.

Knows the model's sizes and the engine's settings; knows nothing of requests.
"""

from blockdiff.core import Request
from blockdiff.engine.config import EngineConfig
from blockdiff.errors import ConfigError, RequestError
from blockdiff.models.base import BlockDiffusionModel
from blockdiff.pages import (
    EMPTY_PAGES,
    SNAPSHOTS_PER_SLOT,
    CachePool,
    count_pages,
    default_page_length,
)
from blockdiff.scheduler import MemoryRules


def plan_memory(model: BlockDiffusionModel, config: EngineConfig, max_context: int) -> MemoryRules:
    """How many pages and state lines the budgets of ``config`` allow.

    Raises ConfigError when a budget does not even hold one block, or a page is no multiple of it.
    """
    block = model.info.block_length
    page_length = config.page_length or default_page_length(block)
    if page_length % block:
        allowed = f"a multiple of the model's block length {block}"
        raise ConfigError(f"page_length: {page_length} is not allowed; it must be {allowed}")
    sizes = model.cache_sizes(page_length, max_context)
    pages_per_slot = count_pages(max_context, page_length)
    pages = config.max_slots * pages_per_slot
    if config.kv_cache_bytes is not None and sizes.page_bytes:
        pages = min(pages, config.kv_cache_bytes // sizes.page_bytes - EMPTY_PAGES)
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


def _snapshots(config: EngineConfig, state_bytes: int) -> int:
    if not (config.prefix_cache and state_bytes):
        return 0
    if config.snapshot_bytes is None:
        return SNAPSHOTS_PER_SLOT * config.max_slots
    return config.snapshot_bytes // state_bytes


def cache_pool(rules: MemoryRules) -> CachePool:
    """What the model has to allocate."""
    return CachePool(rules.pages + EMPTY_PAGES, rules.page_length, rules.snapshots)


def check_fits(request: Request, rules: MemoryRules) -> None:
    """Raise RequestError if all pages together could not hold ``request``."""
    prompt = len(request.input_ids)
    # the last token is never committed
    needed = count_pages(prompt + request.max_tokens - 1, rules.page_length)
    if needed > rules.pages:
        room = rules.pages * rules.page_length
        raise RequestError(
            f"max_tokens: {prompt} prompt tokens and {request.max_tokens} more need "
            f"{needed} pages; the cache has {rules.pages} pages of {rules.page_length} tokens, "
            f"allowed together: up to {room + 1}"
        )

"""Settings of an engine, checked once. Knows nothing of requests."""

from dataclasses import dataclass

from blockdiff.errors import ConfigError
from blockdiff.scheduler.load import LoadAware


@dataclass(frozen=True)
class EngineConfig:
    max_slots: int = 8
    """Requests that run at the same time."""
    max_context: int | None = None
    """Prompt and output tokens of one request together; None: what the model allows."""
    prefill_token_budget: int = 512
    """Prompt tokens of all newcomers together in one round."""
    max_output_tokens: int = 4096
    """Largest ``max_tokens`` of a request."""
    num_threads: int | None = None
    """CPU threads of torch; None leaves torch's own choice."""
    kv_cache_bytes: int | None = None
    """Keys and values of all requests and kept prefixes; None: room for every slot's longest."""
    page_length: int | None = None
    """Positions per page, a multiple of the block length; None: the first from 16 on."""
    prefix_cache: bool = True
    """Whether what has been committed is kept for requests that begin with the same tokens."""
    snapshot_bytes: int | None = None
    """Kept recurrent states; None: two per slot."""
    snapshot_interval: int = 512
    """Tokens between two kept states of one request."""
    check_invariants: bool = False
    """Whether the ownership of all memory is proved after every round (slow)."""
    truncate_last_block: bool = False
    """Whether the last block of a request ends where ``max_tokens`` does: fewer rows, but open
    positions beyond the limit no longer have a part in the others."""
    deterministic: bool = False
    """Whether a request's results must be the same bits whatever else runs; the model must have
    been loaded so."""
    expert_statistics_interval: int = 16
    """Experts are counted in one of so many rounds, and in all that are replayed; 0: never."""
    cuda_graphs: bool | None = None
    """Whether rounds of usual shapes are captured at warm-up and replayed; None: where they can be.
    """
    graph_blocks: tuple[int, ...] = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128)
    """Sizes of captured rounds, in blocks of rows: what runs besides is filled up to one."""
    load_aware: LoadAware | None = None
    """How far elastic requests give way while others wait; None: not at all."""

    def __post_init__(self) -> None:
        for name in (
            "max_slots",
            "prefill_token_budget",
            "max_output_tokens",
            "snapshot_interval",
        ):
            _check_integer(name, getattr(self, name), 1)
        _check_integer("expert_statistics_interval", self.expert_statistics_interval, 0)
        for name, least in _OPTIONAL.items():
            if getattr(self, name) is not None:
                _check_integer(name, getattr(self, name), least)
        self._check_graphs()
        for name in ("prefix_cache", "check_invariants", "truncate_last_block", "deterministic"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise ConfigError(f"{name}: {value!r} is not allowed; it must be True or False")
        if self.deterministic and self.load_aware is not None:
            raise ConfigError(
                "load_aware: makes results depend on what else runs, which deterministic forbids; "
                "leave one of them out"
            )

    def _check_graphs(self) -> None:
        if self.cuda_graphs is not None and not isinstance(self.cuda_graphs, bool):
            raise ConfigError(
                f"cuda_graphs: {self.cuda_graphs!r} is not allowed; it must be True, False or None"
            )
        if not isinstance(self.graph_blocks, tuple) or not self.graph_blocks:
            raise ConfigError(
                f"graph_blocks: {self.graph_blocks!r} is not allowed; "
                "it must be a tuple of at least one number"
            )
        for size in self.graph_blocks:
            _check_integer("graph_blocks", size, 1)
        if self.deterministic and self.cuda_graphs:
            raise ConfigError(
                "cuda_graphs: fills rounds up, and deterministic is not made for that; "
                "leave one of them out"
            )


# The least that each of these may be, where it is given.
_OPTIONAL = {
    # a token of the prompt and one of the output
    "max_context": 2,
    "num_threads": 1,
    "kv_cache_bytes": 1,
    "page_length": 1,
    "snapshot_bytes": 0,
}


def _check_integer(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(
            f"{name}: {value!r} is not allowed; it must be a whole number of at least {least}"
        )

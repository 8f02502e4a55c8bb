"""How many processes share a model, and what they agree on. Needs no torch."""

from dataclasses import dataclass

from blockdiff.errors import ConfigError

# seconds that a command to all ranks may take
RANK_TIMEOUT = 60.0


@dataclass(frozen=True)
class ParallelSettings:
    """How many ranks share a model and how long they wait for each other."""

    tensor_parallel: int = 1
    timeout_seconds: float = RANK_TIMEOUT
    threads: int | None = None
    """CPU threads of all ranks together; None: torch's own choice."""
    deterministic: bool = False
    """Whether the ranks compute so that a request's bits do not depend on the batch."""

    def __post_init__(self) -> None:
        if self.tensor_parallel < 1:
            raise ConfigError(f"tensor_parallel is {self.tensor_parallel}; it must be at least 1")
        if not self.timeout_seconds > 0:
            raise ConfigError(
                f"tensor_parallel_timeout is {self.timeout_seconds}; it must be more than 0 seconds"
            )

    def share_threads(self, available: int) -> int:
        """CPU threads of one rank, at least 1, of those given or else of the ``available``."""
        total = available if self.threads is None else self.threads
        return max(total // self.tensor_parallel, 1)

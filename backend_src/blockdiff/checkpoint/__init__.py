"""Reading checkpoints from disk. Knows nothing of the engine."""

from blockdiff.checkpoint.load import load_model

__all__ = ["load_model"]

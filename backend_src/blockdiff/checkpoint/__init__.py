"""Reading checkpoints from disk. Knows nothing of the engine."""

from blockdiff.checkpoint.load import check_files, load_model, load_with_report
from blockdiff.checkpoint.structure import meta_model

__all__ = ["check_files", "load_model", "load_with_report", "meta_model"]

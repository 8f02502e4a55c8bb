"""blockdiff: a block-diffusion language-model engine and its Triton Inference Server glue."""

__version__ = "0.1.0"

"""Layers of the hybrid trunk over ``blockdiff_kernels``. Knows nothing of checkpoints' names."""

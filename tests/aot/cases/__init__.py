"""Production shapes of every op's kernels, one module per op: its ``CASES``.

A case calls an op's Triton entry with tensors of device ``meta``; what it would start is compiled.
"""

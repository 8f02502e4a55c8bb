"""The check of kernels on a GPU: right first, then how fast beside what is possible.

Run: python -m perf.gpu_check --help
"""

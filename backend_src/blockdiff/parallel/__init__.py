"""One model on several processes of a machine: tensor and expert parallelism.

Rank 0 is the calling process; it starts, commands and watches the others. Knows nothing of
requests, of serving or of how a family computes.
"""

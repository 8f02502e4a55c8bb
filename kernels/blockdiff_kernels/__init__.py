"""Operations of block-diffusion models, one folder each: a plain torch definition and a dispatcher.

Knows nothing of checkpoints, caches as objects, requests or rounds: tensors in, tensors out.
"""

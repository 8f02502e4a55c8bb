"""The last step of loading on a CPU: weights that are cut and joined by now are packed.

Knows nothing of families or of what a model chooses to pack.
"""

from blockdiff.checkpoint.sizes import model_parts
from blockdiff.models.layers.int8 import Int8Linear
from blockdiff.models.layers.packed import PackedLinear


def pack_projections(model: object) -> None:
    """Pack what is to be packed of ``model``, one projection at a time."""
    for part in model_parts(model):
        if isinstance(part, (PackedLinear, Int8Linear)):
            part.pack()

"""How many weights a stored tensor holds: a packed int32 holds several, a scale holds none.

Knows names and what a config declares; reads no tensor.
"""

from pathlib import Path

from blockdiff.config import read_json
from blockdiff.config.quantization import Quantization, parse_quantization
from blockdiff.errors import ConfigError
from blockdiff.weights.groups import SCALES, group_of
from blockdiff.weights.headers import TensorHeader

PACKED = (".weight_packed", ".qweight")
_WORD_BITS, _USUAL_BITS = 32, 4


def values_per_word(own: Quantization | None) -> int:
    """Weights in a packed int32 of a checkpoint stored as ``own``; None: as is usual, in 4 bits."""
    return _WORD_BITS // (_USUAL_BITS if own is None or not own.is_packed else int(own.kind[-1]))


def values_per_word_at(path: Path) -> int:
    """As ``values_per_word``, by the config beside the weights at ``path`` if one can be read."""
    config = (path.parent if path.is_file() else path) / "config.json"
    try:
        return values_per_word(parse_quantization(read_json(config)))
    except ConfigError:
        # files are shown also where their config is missing or damaged
        return values_per_word(None)


def count_weights(tensor: TensorHeader, per_word: int) -> int:
    """Weights that a stored tensor stands for; padding of its last words counts."""
    if group_of(tensor.name) == SCALES:
        return 0
    return tensor.elements * (per_word if tensor.name.endswith(PACKED) else 1)

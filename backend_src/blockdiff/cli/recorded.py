"""Tensors that requests refer to by name: those of ``expected.safetensors`` in the model folder.

Knows the file; knows nothing of what the tensors mean.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from blockdiff.errors import RequestError

if TYPE_CHECKING:
    from torch import Tensor

FILE = "expected.safetensors"


class RecordedTensors:
    """Reads tensors one at a time; the file is needed only when one is asked for."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE

    def read(self, name: str, shape: Sequence[int | None]) -> "Tensor":
        """The tensor ``name``, which must have ``shape`` (None: any size); raises RequestError."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(str(self._path), framework="pt") as file:
                tensor: Tensor = file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            reason = " ".join(str(error).split())
            raise RequestError(
                f"inputs: {name!r} cannot be read from {self._path} ({reason})"
            ) from None
        sizes = zip(tensor.shape, shape, strict=False)
        if len(tensor.shape) != len(shape) or any(w not in (None, got) for got, w in sizes):
            wanted = ["any" if size is None else size for size in shape]
            raise RequestError(
                f"inputs: {name!r} has shape {list(tensor.shape)}; it must be {wanted}"
            )
        return tensor

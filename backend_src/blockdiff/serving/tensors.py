"""Small conversions between ``pb_utils`` tensors and numpy arrays, all with a batch axis of 1."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray


def input_arrays(pb_utils: Any, request: Any, names: Iterable[str]) -> dict[str, NDArray[Any]]:
    """The given inputs by name, as arrays that stay valid after ``execute``."""
    found = {}
    for name in names:
        tensor = pb_utils.get_input_tensor_by_name(request, name)
        if tensor is not None:
            # A copy: the tensor is a view into shared memory that Triton reuses.
            found[name] = np.array(tensor.as_numpy())
    return found


def text_tensor(pb_utils: Any, name: str, text: str) -> Any:
    return pb_utils.Tensor(name, np.array([[text.encode("utf-8")]], dtype=np.object_))


def scalar_tensor(pb_utils: Any, name: str, value: Any, dtype: Any) -> Any:
    return pb_utils.Tensor(name, np.array([[value]], dtype=dtype))


def list_tensor(pb_utils: Any, name: str, values: Iterable[Any], dtype: Any) -> Any:
    return pb_utils.Tensor(name, np.array([list(values)], dtype=dtype))


def text_of(array: NDArray[Any]) -> str:
    """The single string of a STRING tensor."""
    item = array.reshape(-1)[0]
    return item.decode("utf-8") if isinstance(item, bytes) else str(item)

"""How far a kernel may be from a float64 definition. Holds no tests."""

import torch
from torch import Tensor

# of the norm of the result, by what is computed in
TOLERANCES = {torch.float32: 2e-6, torch.bfloat16: 8e-3}


def relative_error(found: Tensor, exact: Tensor) -> float:
    """|found - exact| / |exact|; nan where ``found`` has one."""
    assert found.shape == exact.shape, (found.shape, exact.shape)
    exact = exact.double()
    return float((found.double() - exact).norm() / exact.norm().clamp_min(1e-300))


def assert_near(found: Tensor, exact: Tensor, tolerance: float | None = None) -> None:
    """``tolerance`` None: that of the dtype of ``found``."""
    limit = TOLERANCES[found.dtype] if tolerance is None else tolerance
    error = relative_error(found, exact)
    assert error <= limit, f"relative error {error:.3g} > {limit:.3g}"

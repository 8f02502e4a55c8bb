"""What the tests of models start from. Holds no tests."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _first_comparison() -> None:
    """It imports much of torch, which is to happen before the heap counts as settled."""
    torch.testing.assert_close(torch.zeros(1), torch.zeros(1))

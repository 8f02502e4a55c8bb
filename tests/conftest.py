"""What every test module starts from. Holds no tests."""

import gc

import pytest


@pytest.fixture(autouse=True, scope="module")
def _settled_heap() -> None:
    """Loading a model collects garbage, which need not look through all of torch each time."""
    gc.freeze()

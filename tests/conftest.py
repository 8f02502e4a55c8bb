"""What every test module starts from. Holds no tests."""

import gc
import os
from pathlib import Path

# Kernels run on the host in tests; triton reads this once, when it is imported.
os.environ["TRITON_INTERPRET"] = "1"

import pytest

# Several processes, other people's models, training, measured memory: not for every change.
SLOW = ("parallel", "oracle", "demo", "embedded", "perf", "aot")
SLOW_FILES = (
    *("test_against_engine.py", "test_loading_memory.py", "test_quantize_memory.py"),
    *("test_mixed_batch.py",),
    # whole models of interpreted kernels
    *("test_interpreted.py", "test_captured_rounds.py", "test_kernels.py"),
    *("test_flat_delta.py", "test_flat_attention.py", "test_filled_rounds.py"),
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what `make test-fast` leaves out besides servers; look at compiled kernels last."""
    here = Path(__file__).parent
    for item in items:
        folder = item.path.relative_to(here).parts[0] if here in item.path.parents else ""
        is_interpreted = item.path.name.startswith("test_triton_")
        if folder in SLOW or item.path.name in SLOW_FILES or is_interpreted:
            item.add_marker(pytest.mark.slow)
    # It compiles in the background meanwhile; of several processes one begins with it.
    is_first = hasattr(config, "workerinput")
    items.sort(key=lambda item: (here / "aot" in item.path.parents) is not is_first)


@pytest.fixture(autouse=True, scope="module")
def _settled_heap() -> None:
    """Loading a model collects garbage, which need not look through all of torch each time."""
    gc.freeze()

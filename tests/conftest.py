"""What every test gets: the same seeds, two threads, and `gpu` tests skipped where there is no CUDA."""

import random

import numpy as np
import pytest
import torch

torch.set_num_threads(2)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device; torch finds none")
    for item in items:
        if item.get_closest_marker("gpu") is not None:
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def _seeds() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture
def field_report(request: pytest.FixtureRequest) -> str:
    """The ids of the reports that a test answers; see `tests/support/field_report.py`."""
    return str(request.param)

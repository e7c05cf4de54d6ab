"""What tests on a GPU share. Every test file here sets `pytestmark = pytest.mark.gpu`."""

import pytest
import torch


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())

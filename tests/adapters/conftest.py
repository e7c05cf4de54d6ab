"""One tiny Qwen3 with its sites, and the reader as the engine would make it."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from tensorrt_lora.adapters.adapter_error import AdapterError
from tensorrt_lora.adapters.adapter_reader import AdapterReader
from tensorrt_lora.config.lora_config import LoraConfig
from tensorrt_lora.lora.adapter_weights import AdapterWeights
from tensorrt_lora.lora.lora_site import LoraSite
from tensorrt_lora.lora_request import LoRARequest
from tests.support.tiny_adapters import find_sites
from tests.support.tiny_models import make_tiny_model

Read = Callable[..., AdapterWeights]


@pytest.fixture(scope="session")
def model() -> PreTrainedModel:
    """Two layers, q [96, 72], k and v [32, 72], o [72, 96], gate and up [112, 72], down [72, 112]."""
    return make_tiny_model("qwen3")


@pytest.fixture(scope="session")
def sites(model: PreTrainedModel) -> dict[str, LoraSite]:
    return find_sites(model)


@pytest.fixture
def read(sites: dict[str, LoraSite]) -> Read:
    """Read an adapter called "a1"; arguments replace `LoraConfig()`, float32 and the Qwen3's sites."""

    def read(
        directory: Path,
        lora_config: LoraConfig | None = None,
        dtype: torch.dtype = torch.float32,
        of: dict[str, LoraSite] | None = None,
        parameters: dict[str, torch.Tensor] | None = None,
    ) -> AdapterWeights:
        reader = AdapterReader(of or sites, lora_config or LoraConfig(), dtype, base_parameters=parameters or {})
        return reader.read(LoRARequest("a1", 1, str(directory)))

    return read


@pytest.fixture
def refuse(read: Read) -> Callable[..., str]:
    """Read an adapter that must be refused; returns the message, which has to name the adapter first."""

    def refuse(directory: Path, *arguments: object, **named: object) -> str:
        with pytest.raises(AdapterError) as caught:
            read(directory, *arguments, **named)
        message = str(caught.value)
        assert message.startswith(f"adapter 'a1' ({directory}): ")
        return message

    return refuse

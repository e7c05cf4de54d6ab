"""Every malformed adapter is refused with a message that names it, what is wrong, and what to do."""

import pytest
import torch

from tensorrt_lora.adapters.adapter_error import AdapterError
from tensorrt_lora.adapters.adapter_reader import AdapterReader
from tensorrt_lora.lora_request import LoRARequest
from tests.support.malformed_adapters import LORA_CONFIG, MALFORMED, write_good_adapter
from tests.support.tiny_adapters import find_parameters


@pytest.fixture
def reader(model, sites):
    return AdapterReader(sites, LORA_CONFIG, torch.float32, base_parameters=find_parameters(model))


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_adapter_is_refused(reader, tmp_path, capsys, kind):
    spoil, message = MALFORMED[kind]
    directory = write_good_adapter(tmp_path / "spoiled")
    assert len(reader.read(LoRARequest("good", 1, str(directory))).modules) == 4
    spoil(directory)
    with pytest.raises(AdapterError, match=rf"(?s)^adapter 'spoiled' \({directory}\): .*{message}"):
        reader.read(LoRARequest("spoiled", 2, str(directory)))
    assert "this must never run" not in capsys.readouterr().out

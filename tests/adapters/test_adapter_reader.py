import pytest
import torch

from tensorrt_lora.adapters.adapter_error import AdapterError
from tensorrt_lora.adapters.adapter_reader import AdapterReader
from tensorrt_lora.config.lora_config import LoraConfig
from tensorrt_lora.lora_request import LoRARequest
from tests.support.tiny_adapters import config_fields, random_tensors, write_adapter


@pytest.fixture
def request_(sites, tmp_path):
    write_adapter(tmp_path / "a1", random_tensors(sites, ("q_proj",), 4), config_fields(4, ["q_proj"]))
    return LoRARequest("a1", 3, str(tmp_path / "a1"))


def test_a_peft_directory_is_read_in_the_models_dtype(sites, request_):
    weights = AdapterReader(sites, LoraConfig(), torch.bfloat16).read(request_)
    assert {module.a.dtype for module in weights.modules.values()} == {torch.bfloat16}
    assert weights.name == "a1"


def test_limits_come_from_the_engines_config(sites, request_):
    with pytest.raises(AdapterError, match="rank 4 is above max_lora_rank=2"):
        AdapterReader(sites, LoraConfig(max_lora_rank=2), torch.float32).read(request_)


def test_the_checkpoint_format_is_the_engines(sites, request_):
    with pytest.raises(AdapterError, match=r"holds no \.nemo archive; for a PEFT adapter set lora_ckpt_source='hf'"):
        AdapterReader(sites, LoraConfig(lora_ckpt_source="nemo"), torch.float32).read(request_)


def test_a_reader_gives_way_and_reads_the_same(sites, request_):
    pieces: list[None] = []
    plain = AdapterReader(sites, LoraConfig(), torch.bfloat16).read(request_)
    paced = AdapterReader(sites, LoraConfig(), torch.bfloat16, give_way=lambda: pieces.append(None)).read(request_)
    assert len(pieces) >= 2 * len(plain.modules)
    assert paced.version == plain.version and paced.modules.keys() == plain.modules.keys()
    for key, module in plain.modules.items():
        assert torch.equal(paced.modules[key].a, module.a) and torch.equal(paced.modules[key].b, module.b)


@pytest.mark.gpu
def test_the_host_copy_is_pinned_for_cuda(sites, request_):
    weights = AdapterReader(sites, LoraConfig(), torch.bfloat16, pin_memory=True).read(request_)
    assert all(module.a.is_pinned() and module.b.is_pinned() for module in weights.modules.values())

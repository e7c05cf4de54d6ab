import pytest

from tensorrt_lora.adapters.adapter_error import AdapterError
from tensorrt_lora.adapters.target_modules import find_target_modules
from tensorrt_lora.config.lora_config import LoraConfig
from tests.support.tiny_adapters import config_fields, find_sites, lora_pair, random_tensors, write_adapter
from tests.support.tiny_models import make_tiny_model


def test_the_modules_of_all_directories_are_found(sites, tmp_path):
    one = write_adapter(tmp_path / "1", random_tensors(sites, ("q_proj", "up_proj"), 4), config_fields(4, "all-linear"))
    fused = lora_pair("model.layers.0.self_attn.qkv_proj", 4, 72, 160)
    two = write_adapter(tmp_path / "2", fused, config_fields(4, ["qkv_proj"]))
    found = find_target_modules([str(one), str(two)], sites, LoraConfig())
    assert found == ["attn_q", "attn_k", "attn_v", "mlp_gate"]
    assert LoraConfig(lora_target_modules=found).lora_target_modules == found


def test_the_live_model_decides_what_up_proj_is(tmp_path):
    sites = find_sites(make_tiny_model("arcee"))
    directory = write_adapter(tmp_path, random_tensors(sites, ("up_proj",), 4), config_fields(4, ["up_proj"]))
    assert find_target_modules([str(directory)], sites, LoraConfig()) == ["mlp_h_to_4h"]


def test_an_adapter_of_another_model_is_an_error(sites, tmp_path):
    directory = write_adapter(tmp_path / "a1", lora_pair("h.0.c_attn", 4, 8, 8), config_fields(4, ["c_attn"]))
    with pytest.raises(AdapterError, match="nothing in it adapts this model, which takes adapters on self_attn"):
        find_target_modules([str(directory)], sites, LoraConfig())

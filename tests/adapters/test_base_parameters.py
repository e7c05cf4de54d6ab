import pytest
import torch

from tensorrt_lora.adapters.base_parameters import BaseParameters
from tensorrt_lora.lora.lora_site import LoraSite
from tensorrt_lora.lora.module_types import LoraModuleType

_WEIGHT = torch.randn(5000, 4)


@pytest.fixture(params=["model.embed_tokens.weight", "model.language_model.embed_tokens.weight"])
def base(request):
    return BaseParameters({request.param: _WEIGHT, "model.layers.0.self_attn.q_proj.bias": torch.zeros(4)})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.float8_e4m3fn])
def test_a_copy_is_one_in_any_precision(base, dtype):
    assert base.can_compare("embed_tokens")
    assert base.copy_problem("key", "embed_tokens", _WEIGHT.to(dtype)) is None
    rounded = BaseParameters({"model.embed_tokens.weight": _WEIGHT.to(dtype)})
    assert rounded.copy_problem("key", "embed_tokens", _WEIGHT) is None


@pytest.mark.parametrize("row", [0, 4999])
def test_one_trained_row_is_no_copy(base, row):
    trained = _WEIGHT.clone()
    trained[row, 2] += 0.01
    problem = base.copy_problem("key", "embed_tokens", trained)
    assert problem is not None and problem.startswith("tensor key: holds other values than the model's embed_tokens")


def test_another_vocabulary_is_named_with_both_shapes(base):
    problem = base.copy_problem("key", "embed_tokens", torch.zeros(5003, 4))
    assert str(problem).startswith("tensor key: got [5003, 4], the model's embed_tokens is [5000, 4]")


def test_without_values_shapes_are_compared():
    base = BaseParameters({"lm_head.weight": torch.empty(8, 4, device="meta")})
    assert not base.can_compare("lm_head")
    assert base.copy_problem("key", "lm_head", torch.ones(8, 4)) is None
    assert "got [9, 4]" in str(base.copy_problem("key", "lm_head", torch.ones(9, 4)))


def test_nothing_is_known_without_parameters():
    base = BaseParameters({})
    site = LoraSite(0, LoraModuleType.ATTENTION_Q, "model.layers.0.self_attn.q_proj", 4, 4)
    assert base.has_bias(site) is None
    assert base.copy_problem("key", "lm_head", torch.ones(9, 4)) is None and not base.can_compare("lm_head")


def test_biases_are_known_by_site(base):
    q = LoraSite(0, LoraModuleType.ATTENTION_Q, "model.layers.0.self_attn.q_proj", 4, 4)
    k = LoraSite(0, LoraModuleType.ATTENTION_K, "model.layers.0.self_attn.k_proj", 4, 4)
    assert base.has_bias(q) is True and base.has_bias(k) is False


@pytest.mark.parametrize("dtype", [torch.int8, torch.complex64, torch.float8_e8m0fnu])
def test_a_copy_is_in_floating_point(base, dtype):
    problem = base.copy_problem("key", "embed_tokens", torch.zeros(_WEIGHT.shape, dtype=torch.uint8).to(dtype))
    assert problem == f"tensor key: dtype {dtype} is not served; save it in a floating point type"

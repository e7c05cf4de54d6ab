"""The host copy holds exactly the file's values, cast once, in the layout of the slots."""

import pytest
import torch
from safetensors.torch import save_file

from tensorrt_lora.adapters import host_weights
from tensorrt_lora.adapters.host_weights import HostBlock
from tensorrt_lora.config.lora_config import LoraConfig
from tensorrt_lora.lora.module_types import LoraModuleType
from tests.support.tiny_adapters import PREFIX, config_fields, lora_pair, random_tensors, write_adapter

_Q0 = "model.layers.0.self_attn.q_proj"
_Q = (0, LoraModuleType.ATTENTION_Q)
_A, _B = f"{PREFIX}{_Q0}.lora_A.weight", f"{PREFIX}{_Q0}.lora_B.weight"


def _write(directory, tensors, targets=("q_proj",), rank=3, **fields):
    return write_adapter(directory / "a1", tensors, config_fields(rank, list(targets), **fields))


@pytest.mark.parametrize("served", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "stored",
    [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2],
)
def test_values_are_cast_once_and_b_is_transposed(stored, served, read, tmp_path, caplog):
    tensors = {key: tensor.to(stored) for key, tensor in lora_pair(_Q0, 3, 72, 96).items()}
    with caplog.at_level("INFO"):
        weights = read(_write(tmp_path, tensors), None, served)
    module = weights.modules[0, LoraModuleType.ATTENTION_Q]
    assert module.a.dtype == module.b.dtype == served
    assert module.a.is_contiguous() and module.b.is_contiguous()
    assert torch.equal(module.a, tensors[_A].to(served))
    assert torch.equal(module.b, tensors[_B].to(served).t())
    said = "" if stored == served else f" cast from {str(stored).removeprefix('torch.')}"
    assert f"rank 3, {str(served).removeprefix('torch.')}{said}, version" in caplog.text


@pytest.mark.parametrize("half", [_A, _B])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_values_that_are_not_finite_are_refused(half, value, refuse, tmp_path):
    tensors = lora_pair(_Q0, 3, 72, 96)
    tensors[half][2, 1] = value
    message = refuse(_write(tmp_path, tensors))
    assert f"tensor {half}: holds NaN or Inf; the training diverged or the file is damaged" in message
    assert "problems" not in message


def test_values_that_only_the_models_dtype_cannot_hold_are_refused(refuse, read, tmp_path):
    tensors = lora_pair(_Q0, 3, 72, 96)
    tensors[_A][0, 0] = torch.finfo(torch.float32).max
    directory = _write(tmp_path, tensors)
    message = refuse(directory, None, torch.bfloat16)
    assert f"tensor {_A}: values too large for torch.bfloat16; serve the model in float32" in message
    read(directory)


@pytest.mark.parametrize("swap", [True, False])
def test_fused_names_equal_split_ones(swap, read, sites, tmp_path):
    leaves = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
    split = random_tensors(sites, leaves, 3)
    fused = {}
    for layer in (0, 1):
        gate_up = ("gate_proj", "up_proj") if swap else ("up_proj", "gate_proj")
        for name, parts in (("self_attn.qkv_proj", leaves[:3]), ("mlp.gate_up_proj", gate_up)):
            prefix = f"{PREFIX}model.layers.{layer}.{name.partition('.')[0]}."
            shared_a = split[f"{prefix}{parts[0]}.lora_A.weight"]
            for part in parts:
                split[f"{prefix}{part}.lora_A.weight"] = shared_a
            module = f"{PREFIX}model.layers.{layer}.{name}"
            fused[f"{module}.lora_A.weight"] = shared_a
            fused[f"{module}.lora_B.weight"] = torch.cat([split[f"{prefix}{part}.lora_B.weight"] for part in parts])
    lora_config = LoraConfig(swap_gate_up_proj_lora_b_weight=swap)
    patterns = {"alpha_pattern": {"layers.1.self_attn.(qkv|[qkv])_proj": 5}}
    one = write_adapter(
        tmp_path / "split", {k: t.clone() for k, t in split.items()}, config_fields(3, leaves, **patterns)
    )
    two = write_adapter(tmp_path / "fused", fused, config_fields(3, ["qkv_proj", "gate_up_proj"], **patterns))
    expected, weights = read(one, lora_config), read(two, lora_config)
    assert weights.modules.keys() == expected.modules.keys()
    assert len(weights.modules) == 10
    for key, module in weights.modules.items():
        assert torch.equal(module.a, expected.modules[key].a)
        assert torch.equal(module.b, expected.modules[key].b)
        assert module.scale == expected.modules[key].scale == (5 / 3 if key[0] == 1 and key[1] <= 3 else 2.0)
    q, k = weights.modules[0, LoraModuleType.ATTENTION_Q], weights.modules[0, LoraModuleType.ATTENTION_K]
    assert q.a.data_ptr() == k.a.data_ptr()


def test_a_fused_tensor_of_a_wrong_height_is_refused(refuse, tmp_path):
    tensors = lora_pair("model.layers.0.self_attn.qkv_proj", 3, 72, 3 * 96)
    message = refuse(_write(tmp_path, tensors, ["qkv_proj"]))
    assert "qkv_proj.lora_B.weight: got [288, 3], wanted [160, 3]" in message


def test_the_host_copy_does_not_change_with_the_file(read, tmp_path):
    tensors = lora_pair(_Q0, 3, 72, 96)
    directory = _write(tmp_path, tensors)
    module = read(directory).modules[0, LoraModuleType.ATTENTION_Q]
    save_file(
        {key: torch.zeros_like(tensor) for key, tensor in tensors.items()},
        directory / "adapter_model.safetensors",
    )
    assert torch.equal(module.a, tensors[_A])


def test_biases_are_cast_and_magnitudes_are_not(read, sites, tmp_path):
    tensors = lora_pair(_Q0, 3, 72, 96)
    tensors[f"{PREFIX}{_Q0}.lora_magnitude_vector"] = torch.rand(96)
    tensors[f"{PREFIX}{_Q0}.base_layer.bias"] = torch.rand(96)
    module = read(_write(tmp_path, tensors, use_dora=True, bias="all"), dtype=torch.bfloat16).modules[_Q]
    assert (module.magnitude.dtype, module.base_bias.dtype) == (torch.float32, torch.bfloat16)
    assert torch.equal(module.magnitude, tensors[f"{PREFIX}{_Q0}.lora_magnitude_vector"])
    assert torch.equal(module.base_bias, tensors[f"{PREFIX}{_Q0}.base_layer.bias"].bfloat16())


def test_a_bias_of_lora_b_is_scaled_in_float32_and_rounded_once(read, sites, tmp_path):
    tensors = lora_pair(_Q0, 3, 72, 96)
    bias = tensors[f"{PREFIX}{_Q0}.lora_B.bias"] = torch.rand(96).bfloat16()
    module = read(_write(tmp_path, tensors, lora_bias=True, lora_alpha=4), dtype=torch.bfloat16).modules[_Q]
    assert torch.equal(module.bias, (bias.float() * (4 / 3)).bfloat16())


@pytest.mark.parametrize("end", ["lora_magnitude_vector", "base_layer.bias"])
def test_vectors_that_are_not_finite(refuse, tmp_path, end):
    tensors = lora_pair(_Q0, 3, 72, 96)
    tensors[f"{PREFIX}{_Q0}.lora_magnitude_vector"] = torch.rand(96)
    tensors[f"{PREFIX}{_Q0}.base_layer.bias"] = torch.rand(96)
    tensors[f"{PREFIX}{_Q0}.{end}"][5] = torch.inf
    message = refuse(_write(tmp_path, tensors, use_dora=True, bias="all"))
    assert f"tensor {PREFIX}{_Q0}.{end}: holds NaN or Inf" in message


def test_a_block_has_as_many_segments_as_it_needs(monkeypatch):
    monkeypatch.setattr(host_weights, "_SEGMENT_BYTES", 400)
    block = HostBlock(330, dtype=torch.float32, pin_memory=False)
    parts = [block.take(*shape) for shape in ((10, 6), (50,), (7, 20), (80,))]
    assert [part.shape for part in parts] == [(10, 6), (50,), (7, 20), (80,)]
    sizes = [part.untyped_storage().nbytes() for part in parts]
    assert sizes == [400, 400, 560, 320]  # the rest of the first is lost, the third is larger than a segment
    for number, part in enumerate(parts):
        part.fill_(number)
    assert [part.unique().tolist() for part in parts] == [[0], [1], [2], [3]]
    with pytest.raises(AssertionError, match="more was taken"):
        block.take(1)


def test_a_small_adapter_takes_no_more_than_its_size():
    block = HostBlock(30, dtype=torch.bfloat16, pin_memory=False)
    first, second = block.take(2, 5), block.take(20)
    assert first.untyped_storage().nbytes() == 60
    assert second.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()

"""Quantised as loaded, dummy weights, and FP8 checkpoints that do not fit."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tensorrt_lora.config.model_config import ModelConfig
from tensorrt_lora.config.quant_config import QuantAlgo, QuantConfig
from tensorrt_lora.models.auto_model import create_model
from tensorrt_lora.models.checkpoint_loader import load_weights
from tensorrt_lora.models.dequantized_parameters import DequantizedParameters
from tensorrt_lora.models.dummy_weights import load_dummy_weights
from tensorrt_lora.models.modeling_decoder import DecoderModelForCausalLM
from tests.support.fp8_checkpoints import SHAPE, save_fp8_checkpoint
from tests.support.tiny_models import make_tiny_model, save_tiny_model

CPU = torch.device("cpu")
ALGOS: list[QuantAlgo] = ["FP8_PER_TENSOR", "FP8_BLOCK_SCALES"]
DUMMY_ALGOS: list[QuantAlgo] = [*ALGOS, "FP8_STATIC"]
Tensors = dict[str, torch.Tensor]


def make(config: ModelConfig, quant_config: QuantConfig | None) -> DecoderModelForCausalLM:
    config = config.with_quant_config(quant_config)
    return create_model(config, dtype=torch.float32, device=CPU, attn_backend="VANILLA")


def load(directory: Path, quant_config: QuantConfig | None = None) -> DecoderModelForCausalLM:
    config = ModelConfig.from_pretrained(str(directory))
    model = make(config, quant_config)
    load_weights(model, config)
    return model


def assert_rounded(model: DecoderModelForCausalLM, weights: Tensors, algo: QuantAlgo, *excluded: str) -> None:
    """Projections are `weights` rounded to float8, each part by itself; all else is equal."""
    ours = DequantizedParameters(model)
    for name, weight in weights.items():
        if ".layers." not in name or weight.dim() == 1 or any(part in name for part in excluded):
            assert torch.equal(ours[name], weight), name
            continue
        largest = weight.abs().max()  # of the part, not of all that is stored with it
        error = (ours[name] - weight).abs()
        assert (error <= 2.0**-4 * weight.abs() + 2.0**-10 * largest / 448).all(), name
        assert error.max() > 0


@pytest.mark.parametrize("family", ["qwen2", "arcee"])
@pytest.mark.parametrize("algo", ALGOS)
def test_an_unquantised_checkpoint_is_quantised_as_it_is_loaded(algo: QuantAlgo, family: str, tmp_path: Path) -> None:
    save_tiny_model(tmp_path, family, overrides=SHAPE, tokenizer=False)
    weights = dict(make_tiny_model(family, overrides=SHAPE).named_parameters())
    assert_rounded(load(tmp_path, QuantConfig(quant_algo=algo)), weights, algo)


def test_excluded_projections_are_loaded_as_they_are(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "llama", overrides=SHAPE, tokenizer=False)
    weights = dict(make_tiny_model("llama", overrides=SHAPE).named_parameters())
    excluded = ["o_proj", "model.layers.1.mlp", "re:.*layers.0.*(q|k|v)_proj$"]
    model = load(tmp_path, QuantConfig(quant_algo="FP8_PER_TENSOR", exclude_modules=excluded))
    parts = ("o_proj", "layers.1.mlp", "layers.0.self_attn")
    assert_rounded(model, weights, "FP8_PER_TENSOR", *parts)
    assert model.get_parameter("model.layers.1.mlp.down_proj.weight").dtype is torch.float32
    assert model.get_parameter("model.layers.0.mlp.down_proj.weight").dtype is torch.float8_e4m3fn


def test_a_part_of_a_weight_cannot_be_excluded(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "llama", tokenizer=False)
    message = "k_proj of model.layers.0.self_attn would stay unquantised, but q_proj, k_proj, v_proj are stored as one"
    with pytest.raises(ValueError, match=re.escape(message)):
        load(tmp_path, QuantConfig(quant_algo="FP8_PER_TENSOR", exclude_modules=["k_proj"]))


def test_blocks_across_projections_are_refused(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "llama", tokenizer=False)
    with pytest.raises(ValueError, match="cannot store projections of 96, 32, 32 rows as one weight"):
        load(tmp_path, QuantConfig(quant_algo="FP8_BLOCK_SCALES"))


@pytest.mark.parametrize("algo", DUMMY_ALGOS)
def test_dummy_weights_are_those_of_the_unquantised_model_rounded(algo: QuantAlgo) -> None:
    config = ModelConfig.from_hf(make_tiny_model("qwen2", overrides=SHAPE).config)
    quant_config = QuantConfig(quant_algo=algo)
    unquantised, quantised, again = make(config, None), make(config, quant_config), make(config, quant_config)
    for model in (unquantised, quantised, again):
        load_dummy_weights(model, seed=3)
    assert_rounded(quantised, dict(DequantizedParameters(unquantised)), algo)
    for (name, parameter), other in zip(quantised.named_parameters(), again.parameters(), strict=True):
        assert parameter.float().isfinite().all() and torch.equal(parameter.float(), other.float()), name


def test_dummy_weights_of_a_quantised_config() -> None:
    hf_config = make_tiny_model("llama", overrides=SHAPE).config
    hf_config.quantization_config = {"quant_method": "fp8", "activation_scheme": "static"}
    model = make(ModelConfig.from_hf(hf_config), None)
    load_dummy_weights(model, seed=0)
    assert all(parameter.float().isfinite().all() for parameter in model.parameters())


def test_a_quantised_checkpoint_is_not_quantised_again(tmp_path: Path) -> None:
    save_fp8_checkpoint(tmp_path, "qwen3 blocks")
    with pytest.raises(ValueError, match=r"already quantised \(FP8_BLOCK_SCALES\): leave quant_config out"):
        load(tmp_path, QuantConfig(quant_algo="FP8_PER_TENSOR"))


Q_PROJ = "model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("layout", "edit", "message"),
    [
        (
            "compressed-tensors static",
            lambda tensors: tensors.pop(f"{Q_PROJ}.input_scale"),
            f"missing 1: {Q_PROJ}.input_scale",
        ),
        (
            "compressed-tensors dynamic",
            lambda tensors: tensors.update({"lm_head.weight_scale": torch.ones(1)}),
            "unexpected 1: lm_head.weight_scale",
        ),
        (
            "qwen3 blocks",
            lambda tensors: tensors.update({f"{Q_PROJ}.weight_scale_inv": torch.ones(4, 2)}),
            f"tensor {Q_PROJ}.weight_scale_inv in .* has shape \\(4, 2\\), the model needs \\(2, 2\\)",
        ),
        (
            "modelopt file",
            lambda tensors: tensors.update({f"{Q_PROJ}.weight": torch.ones(256, 192)}),
            f"tensor {Q_PROJ}.weight in .* has dtype F32; only F8_E4M3 can be loaded",
        ),
        (
            "compressed-tensors channel",
            lambda tensors: tensors.update({f"{Q_PROJ}.weight_scale": torch.ones(255, 1)}),
            f"tensor {Q_PROJ}.weight_scale in .* has shape \\(255, 1\\), the model needs \\(256, 1\\)",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_named(
    layout: str, edit: Callable[[Tensors], object], message: str, tmp_path: Path
) -> None:
    save_fp8_checkpoint(tmp_path, layout)
    tensors = load_file(tmp_path / "model.safetensors")
    edit(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=message):
        load(tmp_path)


def test_scales_of_a_kv_cache_belong_to_quantised_models_alone(tmp_path: Path) -> None:
    save_fp8_checkpoint(tmp_path, "modelopt file")  # has some, and loads
    load(tmp_path)
    save_tiny_model(tmp_path / "plain", "llama", tokenizer=False)
    tensors = load_file(tmp_path / "plain" / "model.safetensors")
    save_file({**tensors, f"{Q_PROJ}.k_scale": torch.ones(1)}, tmp_path / "plain" / "model.safetensors")
    with pytest.raises(ValueError, match=r"unexpected 1: .*k_scale"):
        load(tmp_path / "plain")


def test_the_largest_of_the_parts_input_scales_counts(tmp_path: Path) -> None:
    save_fp8_checkpoint(tmp_path, "modelopt config")
    tensors = load_file(tmp_path / "model.safetensors")
    tensors[f"{Q_PROJ[:-6]}k_proj.input_scale"] = torch.tensor(0.5)
    save_file(tensors, tmp_path / "model.safetensors")
    model = load(tmp_path)
    assert model.get_parameter("model.layers.0.self_attn.qkv_proj.input_scale") == 0.5
    assert model.get_parameter("model.layers.1.self_attn.qkv_proj.input_scale") < 0.1


def test_a_config_alone_says_how_weights_are_stored(tmp_path: Path) -> None:
    """An FP8 config over an unquantised checkpoint is an error, not a quantisation."""
    save_tiny_model(tmp_path, "llama", overrides=SHAPE, tokenizer=False)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"missing 14: model.layers.0.mlp.down_proj.weight_scale"):
        load(tmp_path)

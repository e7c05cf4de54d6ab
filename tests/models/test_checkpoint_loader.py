import json
import logging
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tensorrt_lora.config.model_config import ModelConfig
from tensorrt_lora.models.auto_model import create_model
from tensorrt_lora.models.checkpoint_loader import load_weights
from tensorrt_lora.models.checkpoint_targets import checkpoint_targets
from tensorrt_lora.models.dummy_weights import load_dummy_weights
from tensorrt_lora.models.modeling_decoder import DecoderModelForCausalLM
from tests.support.paged_forward import PagedForward
from tests.support.tiny_models import FAMILIES, VOCAB_SIZE, make_tiny_model, save_tiny_model

CPU = torch.device("cpu")
Tensors = dict[str, torch.Tensor]


def load(directory: Path, *, dtype: torch.dtype = torch.float32, progress: bool = False) -> DecoderModelForCausalLM:
    config = ModelConfig.from_pretrained(str(directory))
    model = create_model(config, dtype=dtype, device=CPU, attn_backend="VANILLA")
    for parameter in model.parameters():
        parameter.fill_(torch.nan)
    load_weights(model, config, progress)
    return model


def create_random(family: str, seed: int, overrides: dict[str, object] | None = None) -> DecoderModelForCausalLM:
    config = ModelConfig.from_hf(make_tiny_model(family, overrides=overrides).config, None)
    model = create_model(config, dtype=torch.float32, device=CPU, attn_backend="VANILLA")
    load_dummy_weights(model, seed)
    return model


def edit_checkpoint(directory: Path, edit: Callable[[Tensors], object]) -> Path:
    """Change the tensors of a checkpoint of one file."""
    file = directory / "model.safetensors"
    tensors = load_file(file)
    edit(tensors)
    save_file(tensors, file)
    return file


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return save_tiny_model(tmp_path / "llama", "llama", tokenizer=False)


@pytest.mark.parametrize("max_shard_size", ["40KB", "1GB"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_tensor_lands_in_its_place(family: str, max_shard_size: str, tmp_path: Path) -> None:
    save_tiny_model(tmp_path, family, max_shard_size=max_shard_size, tokenizer=False)
    shards = len(list(tmp_path.glob("*.safetensors")))
    assert shards > 3 if max_shard_size == "40KB" else shards == 1
    targets = checkpoint_targets(load(tmp_path))
    expected = dict(make_tiny_model(family).named_parameters())
    assert targets.keys() == expected.keys()
    for name, parameter in expected.items():
        assert torch.equal(targets[name].tensor, parameter), name


def test_fused_rows_are_in_the_order_q_k_v_and_gate_up(llama: Path) -> None:
    layer = load(llama).model.layers[1]
    stored = load_file(llama / "model.safetensors")
    prefix = "model.layers.1."
    q, k, v = (stored[f"{prefix}self_attn.{name}_proj.weight"] for name in "qkv")
    assert torch.equal(layer.get_parameter("self_attn.qkv_proj.weight"), torch.cat((q, k, v)))
    gate, up = (stored[f"{prefix}mlp.{name}_proj.weight"] for name in ("gate", "up"))
    assert torch.equal(layer.get_parameter("mlp.gate_up_proj.weight"), torch.cat((gate, up)))


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("wanted", [torch.float32, torch.bfloat16])
def test_tensors_are_cast_to_the_models_dtype(stored: torch.dtype, wanted: torch.dtype, tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "qwen2", dtype=stored, tokenizer=False)
    targets = checkpoint_targets(load(tmp_path, dtype=wanted))
    for name, parameter in make_tiny_model("qwen2").named_parameters():
        assert torch.equal(targets[name].tensor, parameter.to(stored).to(wanted)), name


def test_missing_and_unexpected_tensors_are_all_named(llama: Path) -> None:
    def edit(tensors: Tensors) -> None:
        del tensors["model.layers.1.self_attn.k_proj.weight"], tensors["lm_head.weight"]
        tensors["model.layers.7.mlp.gate_proj.weight"] = torch.zeros(2)

    edit_checkpoint(llama, edit)
    message = (
        f"the tensors in {llama} are not those of LlamaForCausalLM; "
        "missing 2: lm_head.weight, model.layers.1.self_attn.k_proj.weight; "
        "unexpected 1: model.layers.7.mlp.gate_proj.weight"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        load(llama)


def test_wrong_shape_is_named_with_both_shapes(llama: Path) -> None:
    name = "model.layers.0.self_attn.v_proj.weight"
    file = edit_checkpoint(llama, lambda tensors: tensors.update({name: torch.zeros(31, 72)}))
    message = f"tensor {name} in {file} has shape (31, 72), the model needs (32, 72)"
    with pytest.raises(ValueError, match=re.escape(message)):
        load(llama)


def test_wrong_dtype_is_named(llama: Path) -> None:
    name = "model.norm.weight"
    file = edit_checkpoint(llama, lambda tensors: tensors.update({name: torch.zeros(72, dtype=torch.int8)}))
    message = f"tensor {name} in {file} has dtype I8; only F32, F16, BF16 can be loaded"
    with pytest.raises(ValueError, match=re.escape(message)):
        load(llama)


@pytest.mark.parametrize("size", [0, 5, 100, 60_000])
def test_truncated_file_is_named(size: int, llama: Path) -> None:
    file = llama / "model.safetensors"
    assert file.stat().st_size > size
    with file.open("r+b") as stream:
        stream.truncate(size)
    with pytest.raises(ValueError, match=re.escape(f"{file} is damaged or incomplete: ")):
        load(llama)


def test_missing_shard_is_named(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "llama", max_shard_size="100KB", tokenizer=False)
    shard = sorted(tmp_path.glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(ValueError, match=rf"index\.json names files that do not exist: {shard.name}"):
        load(tmp_path)


def test_directory_without_weights(llama: Path) -> None:
    (llama / "model.safetensors").rename(llama / "pytorch_model.bin")
    with pytest.raises(ValueError, match=rf"{llama} has no model.safetensors.*only safetensors and GGUF"):
        load(llama)


def test_stored_rotary_frequencies_are_ignored(llama: Path) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    edit_checkpoint(llama, lambda tensors: tensors.update({name: torch.zeros(8)}))
    assert not load(llama).lm_head.weight.isnan().any()


def test_head_stored_in_a_tied_checkpoint(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save_tiny_model(tmp_path, "qwen3", tokenizer=False)
    edit_checkpoint(tmp_path, lambda tensors: tensors.update({"lm_head.weight": torch.zeros(VOCAB_SIZE, 72)}))
    with caplog.at_level(logging.INFO, logger="tensorrt_lora"):
        model = load(tmp_path)
    assert "ignoring lm_head.weight: the model is tied" in caplog.text
    assert model.lm_head.weight.ne(0).all()

    edit_checkpoint(tmp_path, lambda tensors: tensors.update({"lm_head.weight": torch.zeros(3, 72)}))
    with pytest.raises(ValueError, match=r"unexpected 1: lm_head\.weight"):
        load(tmp_path)


def test_a_tied_checkpoint_of_a_config_that_says_untied(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "qwen3", tokenizer=False)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    with pytest.raises(ValueError, match=r"missing 1: lm_head\.weight"):
        load(tmp_path)


def test_progress_is_shown_when_asked(llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load(llama)
    assert capsys.readouterr().out == ""
    load(llama, progress=True)
    assert "Loading weights" in capsys.readouterr().out


@pytest.mark.parametrize("family", FAMILIES)
def test_dummy_weights_are_given_by_the_seed(family: str) -> None:
    first, second, other = (create_random(family, seed) for seed in (1, 1, 2))
    for (name, parameter), same, different in zip(
        first.named_parameters(), second.parameters(), other.parameters(), strict=True
    ):
        assert torch.equal(parameter, same) and not torch.equal(parameter, different), name


@pytest.mark.parametrize("family", ["qwen3", "qwen3_untied", "arcee"])
def test_dummy_weights_keep_a_deep_model_in_range(family: str) -> None:
    model = create_random(family, 0, {"num_hidden_layers": 24})
    logits = PagedForward(model).step({"a": torch.randint(0, VOCAB_SIZE, (50,)).tolist()})["a"]
    assert 2 < logits.std() < 4.5
    best, second = logits.topk(2).values.unbind(-1)
    assert (best - second).median() > 0.2

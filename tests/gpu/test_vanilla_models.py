"""Models with VANILLA attention on a GPU: weights loaded there, logits against transformers on the CPU."""

from pathlib import Path

import pytest
import torch

from tensorrt_lora.config.model_config import ModelConfig
from tensorrt_lora.models.auto_model import create_model
from tensorrt_lora.models.checkpoint_loader import load_weights
from tensorrt_lora.models.checkpoint_targets import checkpoint_targets
from tensorrt_lora.models.dummy_weights import load_dummy_weights
from tensorrt_lora.models.modeling_decoder import DecoderModelForCausalLM
from tests.support.paged_forward import PagedForward
from tests.support.tiny_models import FAMILIES, VOCAB_SIZE, make_tiny_model, save_tiny_model

pytestmark = pytest.mark.gpu


def load(directory: Path, dtype: torch.dtype, device: torch.device) -> DecoderModelForCausalLM:
    config = ModelConfig.from_pretrained(str(directory))
    model = create_model(config, dtype=dtype, device=device, attn_backend="VANILLA")
    load_weights(model, config)
    return model


def paged_logits(model: DecoderModelForCausalLM, token_ids: list[int]) -> torch.Tensor:
    """Logits of one sequence, on the CPU: a prompt in two chunks beside another sequence, then decode."""
    forward = PagedForward(model)
    parts = [forward.step({"a": token_ids[:20], "other": token_ids[3:9]})["a"]]
    parts.append(forward.step({"a": token_ids[20:33]}, {"other": 5})["a"])
    parts += [forward.step(generations={"a": token, "other": 6})["a"] for token in token_ids[33:]]
    return torch.cat(parts).cpu()


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_transformers(family: str, tmp_path: Path, device: torch.device) -> None:
    save_tiny_model(tmp_path, family, max_shard_size="100KB", tokenizer=False)
    reference = make_tiny_model(family)
    token_ids = torch.randint(0, VOCAB_SIZE, (40,)).tolist()
    with torch.inference_mode():
        expected = reference(torch.tensor([token_ids])).logits[0]
        bf16_error = (reference.bfloat16()(torch.tensor([token_ids])).logits[0].float() - expected).abs()

    logits = paged_logits(load(tmp_path, torch.float32, device), token_ids)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-3)
    logits = paged_logits(load(tmp_path, torch.bfloat16, device), token_ids)
    assert (logits - expected).abs().mean() <= 1.5 * bf16_error.mean()


def test_weights_arrive_unchanged(tmp_path: Path, device: torch.device) -> None:
    save_tiny_model(tmp_path, "qwen2", tokenizer=False)
    targets = checkpoint_targets(load(tmp_path, torch.float32, device))
    for name, parameter in make_tiny_model("qwen2").named_parameters():
        assert targets[name].tensor.device == device and torch.equal(targets[name].tensor.cpu(), parameter), name


def test_dummy_weights_are_given_by_the_seed(device: torch.device) -> None:
    config = ModelConfig.from_hf(make_tiny_model("qwen3").config, None)
    weights = []
    for seed in (1, 1, 2):
        model = create_model(config, dtype=torch.bfloat16, device=device, attn_backend="VANILLA")
        load_dummy_weights(model, seed)
        weights.append(torch.cat([parameter.flatten() for parameter in model.parameters()]))
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])

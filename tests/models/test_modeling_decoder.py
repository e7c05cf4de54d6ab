from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from tensorrt_lora.config.model_config import ModelConfig
from tensorrt_lora.lora.lora_site import find_lora_sites
from tensorrt_lora.lora.module_types import OUTSIDE_LAYERS, LoraModuleType
from tensorrt_lora.models.auto_model import create_model
from tensorrt_lora.models.checkpoint_loader import load_weights
from tensorrt_lora.models.dequantized_parameters import DequantizedParameters
from tensorrt_lora.models.modeling_decoder import DecoderModelForCausalLM
from tests.support.paged_forward import PagedForward
from tests.support.tiny_models import FAMILIES, VOCAB_SIZE, make_tiny_model, save_tiny_model

CPU = torch.device("cpu")
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def load(directory: Path, dtype: torch.dtype = torch.float32) -> DecoderModelForCausalLM:
    config = ModelConfig.from_pretrained(str(directory))
    model = create_model(config, dtype=dtype, device=CPU, attn_backend="VANILLA")
    load_weights(model, config)
    return model


def make_pair(
    directory: Path, family: str, overrides: dict[str, object] | None = None
) -> tuple[DecoderModelForCausalLM, PreTrainedModel]:
    """Our model and transformers', with the same weights."""
    save_tiny_model(directory, family, tokenizer=False, overrides=overrides)
    return load(directory), make_tiny_model(family, overrides=overrides)


@torch.inference_mode()
def reference_logits(model: PreTrainedModel, token_ids: list[int]) -> torch.Tensor:
    return model(torch.tensor([token_ids])).logits[0].float()


def random_tokens(count: int) -> list[int]:
    return torch.randint(0, VOCAB_SIZE, (count,)).tolist()


def assert_equals_transformers(model: DecoderModelForCausalLM, reference: PreTrainedModel) -> None:
    """Logits of three sequences through prefill, chunked prefill and decode, in mixed batches."""
    tokens = {name: random_tokens(count) for name, count in (("a", 40), ("b", 9), ("c", 23))}
    expected = {name: reference_logits(reference, ids) for name, ids in tokens.items()}
    forward = PagedForward(model)
    done = dict.fromkeys(tokens, 0)
    steps: list[tuple[dict[str, int], list[str]]] = [
        ({"a": 11, "b": 8}, []),
        ({"a": 21, "c": 5}, ["b"]),
        ({"c": 17, "a": 1}, []),
        ({}, ["a", "c"]),
        *[({}, ["a"])] * 6,
    ]
    for chunks, generations in steps:
        outputs = forward.step(
            {name: tokens[name][done[name] : done[name] + count] for name, count in chunks.items()},
            {name: tokens[name][done[name]] for name in generations},
        )
        for name, logits in outputs.items():
            wanted = expected[name][done[name] : done[name] + len(logits)]
            torch.testing.assert_close(logits, wanted, rtol=0, atol=1e-4)
            done[name] += len(logits)
    assert done == {name: len(ids) for name, ids in tokens.items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_transformers(family: str, tmp_path: Path) -> None:
    assert_equals_transformers(*make_pair(tmp_path, family))


def test_scaled_rotary_embedding_equals_transformers(tmp_path: Path) -> None:
    assert_equals_transformers(*make_pair(tmp_path, "llama", {"rope_parameters": LLAMA3_ROPE}))


@pytest.mark.parametrize("family", ["qwen3", "qwen2"])
def test_bfloat16_is_as_close_to_float32_as_transformers_is(family: str, tmp_path: Path) -> None:
    save_tiny_model(tmp_path, family, tokenizer=False)
    token_ids = random_tokens(64)
    reference = make_tiny_model(family)
    truth = reference_logits(reference, token_ids)
    their_error = (reference_logits(reference.bfloat16(), token_ids) - truth).abs()
    logits = PagedForward(load(tmp_path, torch.bfloat16)).step({"a": token_ids})["a"]
    our_error = (logits - truth).abs()
    assert logits.dtype == torch.float32
    assert our_error.mean() <= 1.2 * their_error.mean() and our_error.max() <= 2 * their_error.max()


@pytest.mark.parametrize("family", FAMILIES)
def test_every_linear_layer_and_the_embedding_of_the_checkpoint_are_sites(family: str, tmp_path: Path) -> None:
    model, reference = make_pair(tmp_path, family)
    expected = {
        name: (module.in_features, module.out_features)
        for name, module in reference.named_modules()
        if isinstance(module, torch.nn.Linear)
    }
    expected["model.embed_tokens"] = (reference.config.vocab_size, reference.config.hidden_size)
    sites = find_lora_sites(model)
    assert {name: (site.in_features, site.out_features) for name, site in sites.items()} == expected
    outside = {name: site.module_type for name, site in sites.items() if site.layer_idx == OUTSIDE_LAYERS}
    assert outside == {"model.embed_tokens": LoraModuleType.EMBED_TOKENS, "lm_head": LoraModuleType.LM_HEAD}
    in_layers = [site for site in sites.values() if site.layer_idx != OUTSIDE_LAYERS]
    assert all(site.hf_name.startswith(f"model.layers.{site.layer_idx}.") for site in in_layers)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_site_has_its_base_weight_and_bias(family: str, tmp_path: Path) -> None:
    model, reference = make_pair(tmp_path, family)
    parameters = DequantizedParameters(model)
    for name in find_lora_sites(model):
        theirs = dict(reference.get_submodule(name).named_parameters(recurse=False))
        ours = {leaf: parameters[f"{name}.{leaf}"] for leaf in ("weight", "bias") if f"{name}.{leaf}" in parameters}
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[leaf], theirs[leaf]) for leaf in theirs), name


@pytest.mark.parametrize(("family", "tied"), [("qwen3", True), ("qwen3_untied", False)])
def test_head_is_the_embedding_when_tied(family: str, tied: bool, tmp_path: Path) -> None:
    model, _ = make_pair(tmp_path, family)
    assert (model.lm_head.weight is model.model.embed_tokens.weight) is tied

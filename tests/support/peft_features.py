"""Adapters that use more of PEFT than A and B on linear layers, each trained part drawn at random."""

import torch
from peft import LoraConfig as PeftLoraConfig
from peft import PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer as PeftLoraLayer
from transformers import PreTrainedModel

from tests.support.tiny_adapters import peft_layers

FEATURES: dict[str, dict[str, object]] = {
    "plain": {"r": 4, "target_modules": "all-linear"},
    "dora": {"r": 5, "target_modules": "all-linear", "use_dora": True},
    "dora_of_whole_pages": {"r": 16, "target_modules": ["q_proj", "o_proj", "up_proj"], "use_dora": True},
    "lora_bias": {"r": 8, "target_modules": ["q_proj", "k_proj", "v_proj"], "lora_bias": True},
    "bias_all": {"r": 3, "target_modules": ["q_proj", "down_proj"], "bias": "all"},
    "bias_lora_only": {"r": 3, "target_modules": ["k_proj", "v_proj", "o_proj"], "bias": "lora_only"},
    "dora_bias_all": {"r": 2, "target_modules": ["q_proj", "up_proj"], "use_dora": True, "bias": "all"},
    "embed_tokens": {"r": 6, "target_modules": ["embed_tokens"]},
    "lm_head": {"r": 7, "target_modules": ["lm_head"]},
    "embed_tokens_and_lm_head": {"r": 17, "target_modules": ["embed_tokens", "lm_head"]},
    "dora_everywhere": {
        "r": 4,
        "target_modules": ["embed_tokens", "lm_head", "v_proj", "gate_proj", "down_proj"],
        "use_dora": True,
    },
}
"""PEFT's fields by feature. `lora_bias` asks for biases in the base layers."""


def make_feature_model(model: PreTrainedModel, feature: str, *, strength: float = 0.5) -> PeftModel:
    """`model` with a random adapter "default"; all that the feature trains differs from what PEFT starts with."""
    config = PeftLoraConfig(task_type="CAUSAL_LM", lora_alpha=8, **FEATURES[feature])
    peft_model = get_peft_model(model, config).eval()
    generator = torch.Generator().manual_seed(list(FEATURES).index(feature))

    def normal(shape: torch.Size, std: float) -> torch.Tensor:
        return torch.randn(shape, generator=generator) * std

    with torch.no_grad():
        for layer in peft_layers(peft_model).values():
            a, b = lora_pair(layer)
            rank, in_features = a.shape
            a.copy_(normal(a.shape, 1.0 if is_embedding(layer) else in_features**-0.5))
            b.copy_(normal(b.shape, strength / (rank**0.5 * layer.scaling["default"])))
            if "default" in layer.lora_magnitude_vector:
                magnitude = layer.lora_magnitude_vector["default"].weight
                magnitude.mul_(1 + normal(magnitude.shape, 0.2))
        for name, parameter in peft_model.named_parameters():
            if name.endswith("bias") and parameter.requires_grad:
                parameter.add_(normal(parameter.shape, 0.3))
    return peft_model


def is_embedding(layer: PeftLoraLayer) -> bool:
    return "default" in layer.lora_embedding_A


def lora_pair(layer: PeftLoraLayer) -> tuple[torch.Tensor, torch.Tensor]:
    """A [rank, in] and B [out, rank] of a PEFT layer."""
    if is_embedding(layer):
        return layer.lora_embedding_A["default"], layer.lora_embedding_B["default"]
    return layer.lora_A["default"].weight, layer.lora_B["default"].weight

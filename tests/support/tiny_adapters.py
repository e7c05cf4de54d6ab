"""PEFT adapters for the tiny models: made by PEFT itself, or written by hand to be spoiled.

No adapter is ever saved with `init_lora_weights` false: PEFT then draws random matrices for tensors that fail
to load, and with the same seed an adapter that never loaded would look loaded. B is never zero.
"""

import copy
import json
from pathlib import Path

import torch
from peft import LoraConfig as PeftLoraConfig
from peft import PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer as PeftLoraLayer
from safetensors.torch import save_file
from transformers import PreTrainedModel

from tensorrt_lora.lora.lora_site import LoraSite
from tensorrt_lora.lora.module_types import OUTSIDE_LAYERS, LoraModuleType

PREFIX = "base_model.model."
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
GATED_MLP = ("gate_proj", "up_proj", "down_proj")

_MODULE_TYPES = {
    "q_proj": LoraModuleType.ATTENTION_Q,
    "k_proj": LoraModuleType.ATTENTION_K,
    "v_proj": LoraModuleType.ATTENTION_V,
    "o_proj": LoraModuleType.ATTENTION_DENSE,
    "gate_proj": LoraModuleType.MLP_H_TO_4H,
    "up_proj": LoraModuleType.MLP_GATE,
    "down_proj": LoraModuleType.MLP_4H_TO_H,
}
_VOCABULARY_TYPES = {"embed_tokens": LoraModuleType.EMBED_TOKENS, "lm_head": LoraModuleType.LM_HEAD}


def save_peft_adapter(
    directory: Path, model: PreTrainedModel, config: PeftLoraConfig, *, seed: int = 0, strength: float = 0.5
) -> Path:
    """Let PEFT write an adapter with random A and B; returns its directory. `model` is left as it is.

    Args:
        config: what PEFT trains; `init_lora_weights` must be true.
        strength: size of the adapter's output beside a normalised input, whatever its rank and scale.
    """
    make_peft_model(model, config, seed=seed, strength=strength).save_pretrained(directory)
    return directory


def make_peft_model(
    model: PreTrainedModel, config: PeftLoraConfig, *, seed: int = 0, strength: float = 0.5
) -> PeftModel:
    """A copy of `model` with a random adapter named "default", in eval mode; all that `config` trains is random."""
    assert config.init_lora_weights is True
    peft_model = get_peft_model(copy.deepcopy(model), config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in peft_layers(peft_model).values():
            _randomize_layer(layer, strength, generator)
        for name, parameter in peft_model.named_parameters():
            is_base_bias = name.endswith(".bias") and ".lora_B." not in name
            if is_base_bias and (config.bias == "all" or (config.bias == "lora_only" and ".base_layer." in name)):
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.3)
    return peft_model


def _randomize_layer(layer: PeftLoraLayer, strength: float, generator: torch.Generator) -> None:
    is_embedding = "default" in layer.lora_embedding_A
    if is_embedding:
        a, b = layer.lora_embedding_A["default"], layer.lora_embedding_B["default"]
    else:
        a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    a.normal_(0.0, 1.0 if is_embedding else a.shape[1] ** -0.5, generator=generator)
    b.normal_(0.0, 1.0, generator=generator)
    b.mul_(strength / (b.shape[1] ** 0.5 * abs(layer.scaling["default"] or 1.0)))
    if layer.lora_bias["default"]:
        layer.lora_B["default"].bias.normal_(0.0, 0.3, generator=generator)
    if "default" in layer.lora_magnitude_vector:
        magnitude = layer.lora_magnitude_vector["default"].weight
        magnitude.mul_(torch.empty_like(magnitude).uniform_(0.6, 1.4, generator=generator))


def peft_layers(peft_model: PeftModel) -> dict[str, PeftLoraLayer]:
    """PEFT's adapted layers by the Hugging Face name of the module they wrap."""
    named = peft_model.base_model.model.named_modules()
    return {name: module for name, module in named if isinstance(module, PeftLoraLayer)}


def find_sites(model: PreTrainedModel, *, with_vocabulary: bool = False) -> dict[str, LoraSite]:
    """The sites that our model of the same checkpoint has, read off the transformers model.

    Args:
        with_vocabulary: the embedding and the head too, as where `lora_target_modules` names them.
    """
    sites = {}
    for name, module in model.named_modules():
        leaf = name.rpartition(".")[2]
        if with_vocabulary and leaf in _VOCABULARY_TYPES:
            vocab, hidden = module.weight.shape
            sizes = (vocab, hidden) if leaf == "embed_tokens" else (hidden, vocab)
            sites[name] = LoraSite(OUTSIDE_LAYERS, _VOCABULARY_TYPES[leaf], name, *sizes)
        if not isinstance(module, torch.nn.Linear) or leaf not in _MODULE_TYPES:
            continue
        is_plain_mlp_up = leaf == "up_proj" and not hasattr(model.get_submodule(name.rpartition(".")[0]), "gate_proj")
        module_type = LoraModuleType.MLP_H_TO_4H if is_plain_mlp_up else _MODULE_TYPES[leaf]
        layer_idx = int(name.split(".layers.")[1].split(".")[0])
        sites[name] = LoraSite(layer_idx, module_type, name, module.in_features, module.out_features)
    return sites


def find_parameters(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """The parameters that our model of the same checkpoint has; a tied head is there under its own name too."""
    return dict(model.named_parameters(remove_duplicate=False))


def lora_pair(
    module: str, rank: int, in_features: int, out_features: int, *, seed: int = 0, prefix: str = PREFIX
) -> dict[str, torch.Tensor]:
    """Random tensors of one module under PEFT's names: lora_A [rank, in] and lora_B [out, rank]."""
    generator = torch.Generator().manual_seed(seed)
    return {
        f"{prefix}{module}.lora_A.weight": torch.randn(rank, in_features, generator=generator),
        f"{prefix}{module}.lora_B.weight": torch.randn(out_features, rank, generator=generator),
    }


def random_tensors(
    sites: dict[str, LoraSite], leaves: tuple[str, ...], rank: int, *, seed: int = 0
) -> dict[str, torch.Tensor]:
    """Pairs for all modules of `sites` whose name ends in one of `leaves`."""
    tensors: dict[str, torch.Tensor] = {}
    for index, (name, site) in enumerate(sites.items()):
        if name.rpartition(".")[2] in leaves:
            tensors |= lora_pair(name, rank, site.in_features, site.out_features, seed=seed * 1000 + index)
    return tensors


def config_fields(rank: int, target_modules: object, /, **fields: object) -> dict[str, object]:
    """The fields of a small adapter_config.json; `fields` replaces or adds some."""
    defaults = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": 2 * rank,
        "bias": "none",
    }
    return {**defaults, "init_lora_weights": True, "target_modules": target_modules, **fields}


def write_adapter(directory: Path, tensors: dict[str, torch.Tensor], fields: dict[str, object]) -> Path:
    """Write an adapter directory by hand; returns it."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "adapter_config.json").write_text(json.dumps(fields))
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, directory / "adapter_model.safetensors")
    return directory

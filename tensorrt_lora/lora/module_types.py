"""The kinds of layer an adapter can target, with TensorRT-LLM's names and numbers.

An adapter names its targets by the model's own (Hugging Face) module names; a configuration names them by
TensorRT-LLM's (`attn_q`). This enum is what both are resolved to.
"""

from collections.abc import Iterable
from enum import IntEnum


class LoraModuleType(IntEnum):
    """Numbers as in TensorRT-LLM's `LoraManager.LORA_MODULE_IDS`; only the kinds served here.

    The two from 100 on are not among TensorRT-LLM's. They lie outside of the decoder layers.
    """

    ATTENTION_Q = 1
    ATTENTION_K = 2
    ATTENTION_V = 3
    ATTENTION_DENSE = 4
    MLP_H_TO_4H = 5  # the gate projection of a gated MLP, the up projection of a plain one
    MLP_4H_TO_H = 6
    MLP_GATE = 7  # the up projection of a gated MLP: TensorRT-LLM's naming of the two is the reverse of the usual
    EMBED_TOKENS = 100
    LM_HEAD = 101

    @property
    def config_name(self) -> str:
        """The unfused name in `LoraConfig.lora_target_modules`."""
        return next(name for name, types in CONFIG_NAMES.items() if types == (self,))


CONFIG_NAMES: dict[str, tuple[LoraModuleType, ...]] = {
    "attn_q": (LoraModuleType.ATTENTION_Q,),
    "attn_k": (LoraModuleType.ATTENTION_K,),
    "attn_v": (LoraModuleType.ATTENTION_V,),
    "attn_qkv": (LoraModuleType.ATTENTION_Q, LoraModuleType.ATTENTION_K, LoraModuleType.ATTENTION_V),
    "attn_dense": (LoraModuleType.ATTENTION_DENSE,),
    "mlp_h_to_4h": (LoraModuleType.MLP_H_TO_4H,),
    "mlp_gate": (LoraModuleType.MLP_GATE,),
    "mlp_4h_to_h": (LoraModuleType.MLP_4H_TO_H,),
    "mlp_gate_up": (LoraModuleType.MLP_H_TO_4H, LoraModuleType.MLP_GATE),
    "embed_tokens": (LoraModuleType.EMBED_TOKENS,),
    "lm_head": (LoraModuleType.LM_HEAD,),
}
"""What each name in `LoraConfig.lora_target_modules` stands for; a fused name stands for its parts."""


OUTSIDE_LAYERS = -1
"""The layer index of the sites that belong to no decoder layer."""

DEFAULT_TARGETS = frozenset(LoraModuleType) - {LoraModuleType.EMBED_TOKENS, LoraModuleType.LM_HEAD}
"""What an empty `LoraConfig.lora_target_modules` stands for: the embedding and the head, whose pools are as wide as the
vocabulary, are sites only where they are named."""


def target_types(config_names: Iterable[str]) -> frozenset[LoraModuleType]:
    """The module types that the names in `LoraConfig.lora_target_modules` stand for."""
    named = frozenset(module_type for name in config_names for module_type in CONFIG_NAMES[name])
    return named or DEFAULT_TARGETS

"""Token embedding and language-model head, which share one weight in a tied model; LoRA never touches the weight.

Each is adapted on its own, in a tied model too: LoRA on the embedding does not move the head, nor the other way round.
"""

import torch
from torch import nn

from tensorrt_lora.kernels.linear_weight import LinearWeight
from tensorrt_lora.lora.layer import BaseEmbedding, BaseProjection, LoraLayer
from tensorrt_lora.lora.lora_params import LoraParams
from tensorrt_lora.lora.module_types import OUTSIDE_LAYERS, LoraModuleType


class Embedding(nn.Module):
    """Token ids to vectors; weight [vocab, hidden] left uninitialised."""

    layer_idx = OUTSIDE_LAYERS

    def __init__(self, *, vocab_size: int, hidden_size: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.weight = nn.Parameter(
            torch.empty((vocab_size, hidden_size), dtype=dtype, device=device), requires_grad=False
        )
        self.lora = LoraLayer(
            module_types=(LoraModuleType.EMBED_TOKENS,),
            hf_names=("",),
            in_features=vocab_size,
            output_sizes=(hidden_size,),
        )

    def forward(self, input_ids: torch.Tensor, lora_params: LoraParams | None) -> torch.Tensor:
        """[T] int -> a new tensor [T, hidden]."""
        base = BaseEmbedding(input_ids, self.weight)
        return LoraLayer.forward_with_base(base, (self.lora,), input_ids, lora_params, self.layer_idx)


class LMHead(nn.Module):
    """Hidden states to logits; weight [vocab, hidden], or the embedding's own parameter when tied to it."""

    layer_idx = OUTSIDE_LAYERS

    def __init__(
        self,
        *,
        vocab_size: int,
        hidden_size: int,
        dtype: torch.dtype,
        device: torch.device,
        tied_to: Embedding | None = None,
    ) -> None:
        super().__init__()
        if tied_to is not None:
            self.weight = tied_to.weight
        else:
            self.weight = nn.Parameter(
                torch.empty((vocab_size, hidden_size), dtype=dtype, device=device), requires_grad=False
            )
        self.lora = LoraLayer(
            module_types=(LoraModuleType.LM_HEAD,),
            hf_names=("",),
            in_features=hidden_size,
            output_sizes=(vocab_size,),
        )

    def forward(self, hidden_states: torch.Tensor, lora_params: LoraParams | None) -> torch.Tensor:
        """[n, hidden] -> [n, vocab]; `lora_params` holds the metadata of these n rows."""
        base = BaseProjection(hidden_states, LinearWeight(self.weight))
        return LoraLayer.forward_with_base(base, (self.lora,), hidden_states, lora_params, self.layer_idx)

"""Arcee: Llama's attention with a plain MLP."""

import torch

from tensorrt_lora.config.model_config import ModelConfig
from tensorrt_lora.models.modeling_decoder import DecoderModelForCausalLM
from tensorrt_lora.modules.linear_method_factory import LinearMethodFactory
from tensorrt_lora.modules.mlp import MLP


class ArceeForCausalLM(DecoderModelForCausalLM):
    """The MLP has no gate; its activation is a squared ReLU."""

    @staticmethod
    def make_mlp(
        config: ModelConfig, layer_idx: int, dtype: torch.dtype, device: torch.device, methods: LinearMethodFactory
    ) -> MLP:
        return MLP(
            layer_idx=layer_idx,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            bias=config.mlp_bias,
            hidden_act=config.hidden_act,
            dtype=dtype,
            device=device,
            methods=methods,
        )

"""The plain feed-forward block: down(relu(up(x))^2)."""

import torch
from torch import nn

from tensorrt_lora.kernels.activation import squared_relu
from tensorrt_lora.kernels.lora_delta import LoraDelta
from tensorrt_lora.kernels.quantized_activation import ActivationQuantization, QuantizedActivation
from tensorrt_lora.lora.layer import LoraLayer
from tensorrt_lora.lora.lora_params import LoraParams
from tensorrt_lora.lora.module_types import LoraModuleType
from tensorrt_lora.modules.linear import Linear
from tensorrt_lora.modules.linear_method_factory import LinearMethodFactory


class MLP(nn.Module):
    """Up projection, squared ReLU, down projection, LoRA on both projections.

    Args:
        layer_idx: index of the decoder layer.
        hidden_size: width of input and output.
        intermediate_size: width between the projections.
        bias: whether the projections have biases.
        hidden_act: the config's name of the activation.
        dtype: of the weights.
        device: where they live.
        methods: of the projections; None leaves them unquantised.

    Raises:
        ValueError: the activation is not "relu2".
    """

    def __init__(
        self,
        *,
        layer_idx: int,
        hidden_size: int,
        intermediate_size: int,
        bias: bool,
        hidden_act: str,
        dtype: torch.dtype,
        device: torch.device,
        methods: LinearMethodFactory | None = None,
    ) -> None:
        super().__init__()
        methods = methods or LinearMethodFactory()
        if hidden_act != "relu2":
            raise ValueError(f"hidden_act={hidden_act!r} is not supported in a plain MLP; supported: 'relu2'")
        self.layer_idx = layer_idx
        self.up_proj = Linear(
            in_features=hidden_size,
            out_features=intermediate_size,
            bias=bias,
            dtype=dtype,
            device=device,
            method=methods.create("up_proj"),
        )
        self.up_lora = LoraLayer(
            module_types=(LoraModuleType.MLP_H_TO_4H,),
            hf_names=("up_proj",),
            in_features=hidden_size,
            output_sizes=(intermediate_size,),
        )
        self.down_proj = Linear(
            in_features=intermediate_size,
            out_features=hidden_size,
            bias=bias,
            dtype=dtype,
            device=device,
            method=methods.create("down_proj"),
            lora=LoraLayer(
                module_types=(LoraModuleType.MLP_4H_TO_H,),
                hf_names=("down_proj",),
                in_features=intermediate_size,
                output_sizes=(hidden_size,),
            ),
        )

    @property
    def input_quantization(self) -> ActivationQuantization | None:
        """How the first projection reads its input, as in `Linear`."""
        return self.up_proj.input_quantization

    def forward(
        self, x: torch.Tensor, lora_params: LoraParams | None, quantized: QuantizedActivation | None = None
    ) -> tuple[torch.Tensor, LoraDelta | None]:
        """[T, hidden] -> [T, hidden], and what the next op has yet to add to it.

        `quantized` is x under `input_quantization`, if that is done already.
        """
        up = LoraLayer.forward_with_base(
            self.up_proj.base(x, quantized), (self.up_lora,), x, lora_params, self.layer_idx
        )
        return self.down_proj.forward_with_delta(squared_relu(up), lora_params, self.layer_idx)

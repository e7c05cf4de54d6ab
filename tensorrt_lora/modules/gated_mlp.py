"""The gated feed-forward block: down(silu(gate(x)) * up(x))."""

import torch
from torch import nn

from tensorrt_lora.kernels.activation import silu_and_mul
from tensorrt_lora.kernels.lora_delta import LoraDelta
from tensorrt_lora.kernels.lora_silu_and_mul import lora_silu_and_mul
from tensorrt_lora.kernels.quantized_activation import ActivationQuantization, QuantizedActivation
from tensorrt_lora.lora.layer import LoraLayer
from tensorrt_lora.lora.lora_params import LoraParams
from tensorrt_lora.lora.module_types import LoraModuleType
from tensorrt_lora.lora.pending_expand import PendingExpand
from tensorrt_lora.modules.linear import Linear
from tensorrt_lora.modules.linear_method_factory import LinearMethodFactory


class GatedMLP(nn.Module):
    """Gate and up projection in one weight (gate rows first), down projection, LoRA on all three.

    Args:
        layer_idx: index of the decoder layer.
        hidden_size: width of input and output.
        intermediate_size: width of gate and of up.
        bias: whether the three projections have biases.
        hidden_act: the config's name of the activation.
        dtype: of the weights.
        device: where they live.
        methods: of the projections; None leaves them unquantised.

    Raises:
        ValueError: the activation is not "silu".
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
        if hidden_act != "silu":
            raise ValueError(f"hidden_act={hidden_act!r} is not supported in a gated MLP; supported: 'silu'")
        self.layer_idx = layer_idx
        self.gate_up_proj = Linear(
            in_features=hidden_size,
            out_features=2 * intermediate_size,
            bias=bias,
            dtype=dtype,
            device=device,
            checkpoint_parts=(("gate_proj", intermediate_size), ("up_proj", intermediate_size)),
            method=methods.create("gate_proj", "up_proj"),
        )
        self.gate_up_lora = LoraLayer(
            module_types=(LoraModuleType.MLP_H_TO_4H, LoraModuleType.MLP_GATE),
            hf_names=("gate_proj", "up_proj"),
            in_features=hidden_size,
            output_sizes=(intermediate_size, intermediate_size),
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
        return self.gate_up_proj.input_quantization

    def forward(
        self, x: torch.Tensor, lora_params: LoraParams | None, quantized: QuantizedActivation | None = None
    ) -> tuple[torch.Tensor, LoraDelta | None]:
        """[T, hidden] -> [T, hidden], and what the next op has yet to add to it.

        `quantized` is x under `input_quantization`, if that is done already.
        """
        base = self.gate_up_proj.base(x, quantized)
        gate_up, pending = self.gate_up_lora.forward_deferred(base, lora_params, self.layer_idx)
        product, quantized = silu_and_mul_with(pending, gate_up, self.down_proj.input_quantization)
        return self.down_proj.forward_with_delta(product, lora_params, self.layer_idx, quantized)


def silu_and_mul_with(
    pending: PendingExpand | LoraDelta | None, gate_up: torch.Tensor, quantization: ActivationQuantization | None
) -> tuple[torch.Tensor, QuantizedActivation | None]:
    """`silu_and_mul` of `gate_up` and of what is still to be added to it."""
    if isinstance(pending, PendingExpand):
        return lora_silu_and_mul(gate_up, pending.h, pending.tables, pending.batch, quantization)
    return silu_and_mul(gate_up, quantization, pending)

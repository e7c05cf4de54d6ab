"""LoRA as a change of the weights: a stand-in for `LoraLayer.forward_with_base` in tests of modules."""

from collections.abc import Callable

import pytest
import torch

from tensorrt_lora.lora.layer import LoraLayer
from tensorrt_lora.lora.lora_params import LoraParams


def patch_lora(
    monkeypatch: pytest.MonkeyPatch,
    deltas: dict[tuple[str, ...], torch.Tensor],
    lora_params: LoraParams,
    layer_idx: int,
) -> None:
    """Let `forward_with_base` add x @ delta.T, with the dense delta [sum(out), in] of the layer's `hf_names`.

    The stand-in also checks that `lora_params` and `layer_idx` arrive as they were passed to the module.
    """

    def forward_with_base(
        base_forward: Callable[[], torch.Tensor],
        lora_layers: tuple[LoraLayer, ...],
        x: torch.Tensor,
        params: LoraParams | None,
        layer: int,
    ) -> torch.Tensor:
        assert params is lora_params and layer == layer_idx
        output = base_forward()
        for lora_layer in lora_layers:
            delta = deltas[lora_layer.hf_names]
            assert delta.shape == (sum(lora_layer.output_sizes), lora_layer.in_features)
            output = output + x @ delta.T
        return output

    monkeypatch.setattr(LoraLayer, "forward_with_base", staticmethod(forward_with_base))

"""Random weights for a model of which only the config is there. Called by the engine after `create_model`."""

import torch
from torch import nn

from tensorrt_lora.modules.embedding import LMHead
from tensorrt_lora.modules.linear import Linear


def load_dummy_weights(model: nn.Module, seed: int) -> None:
    """Fill `model` with random weights that keep activations near 1 and give logits a deviation near 3.

    Drawn on the device, in its own generator: equal seeds give equal weights on equal devices. Quantised projections
    are drawn unquantised, one at a time: they hold what the unquantised model of the same seed does, rounded.
    """
    head = next(module for module in model.modules() if isinstance(module, LMHead))
    generator = torch.Generator(device=head.weight.device).manual_seed(seed)
    seen: set[int] = set()
    with torch.inference_mode():
        for path, module in model.named_modules():
            if isinstance(module, Linear):
                _draw_projection(module, generator)
                continue
            for leaf, parameter in module.named_parameters(recurse=False):
                if id(parameter) in seen:
                    continue
                seen.add(id(parameter))
                if parameter is head.weight:
                    # Also when tied to the embedding: the first norm undoes the embedding's scale.
                    parameter.normal_(0.0, 3.0 / parameter.shape[1] ** 0.5, generator=generator)
                elif f"{path}.{leaf}".endswith("embed_tokens.weight"):
                    parameter.normal_(0.0, 1.0, generator=generator)
                else:
                    parameter.normal_(1.0, 0.05, generator=generator)


def _draw_projection(linear: Linear, generator: torch.Generator) -> None:
    is_quantized = linear.weight.dtype is not linear.dtype
    values = torch.empty_like(linear.weight, dtype=linear.dtype) if is_quantized else linear.weight
    values.normal_(0.0, linear.in_features**-0.5, generator=generator)
    if is_quantized:
        linear.set_weight(values)
    if linear.bias is not None:
        linear.bias.normal_(0.0, 0.1, generator=generator)

"""What an adapter makes of one layer, straight from the definition of `LoraModuleWeights`: no kernels, no tables."""

import torch
from torch import nn
from torch.nn import functional

from tensorrt_lora.lora.adapter_weights import LoraModuleWeights


def apply_module(module: LoraModuleWeights, base: nn.Linear | nn.Embedding, x: torch.Tensor) -> torch.Tensor:
    """The adapted layer's output, in float32: x is [n, in], or token ids [n] for an embedding."""
    is_embedding = isinstance(base, nn.Embedding)
    old_bias = None if is_embedding or base.bias is None else base.bias
    a, b = module.a.float(), module.b.float()
    if is_embedding:
        out, delta, weight = functional.embedding(x, base.weight), a.t()[x] @ b, base.weight.t()
    else:
        out, delta, weight = functional.linear(x, base.weight), x @ a.t() @ b, base.weight
    out = out + module.scale * delta
    if module.magnitude is not None:
        out = out * (module.magnitude / (weight + module.scale * b.t() @ a).norm(dim=1))
    for bias in (module.bias, module.base_bias if module.base_bias is not None else old_bias):
        if bias is not None:
            out = out + bias.float()
    return out

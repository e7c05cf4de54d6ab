"""A model's weights and biases by their Hugging Face names, unquantised, for adapters that depend on them."""

from collections.abc import Iterator, Mapping

from torch import Tensor, nn

from tensorrt_lora.modules.linear import Linear


class DequantizedParameters(Mapping[str, Tensor]):
    """ "<module>.weight" and "<module>.bias", on the device; a shared parameter under both names.

    A quantised weight is dequantised at every access, into a tensor of the model's dtype that the caller may drop;
    everything else is the parameter itself, or rows of one.
    """

    def __init__(self, model: nn.Module) -> None:
        self._parameters: dict[str, Tensor] = {}
        self._weights: dict[str, tuple[Linear, slice]] = {}
        for path, module in model.named_modules():
            if isinstance(module, Linear):
                for name, rows in module.parts(path):
                    self._weights[f"{name}.weight"] = (module, rows)
                    if module.bias is not None:
                        self._parameters[f"{name}.bias"] = module.bias[rows]
            else:
                for leaf, parameter in module.named_parameters(recurse=False):
                    self._parameters[f"{path}.{leaf}"] = parameter

    def __getitem__(self, name: str) -> Tensor:
        if name in self._weights:
            linear, rows = self._weights[name]
            return linear.dequantized_weight(rows)
        return self._parameters[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._parameters
        yield from self._weights

    def __len__(self) -> int:
        return len(self._parameters) + len(self._weights)

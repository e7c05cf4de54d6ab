"""Which projections of one model are quantised, and how.

Owns the outcome of a checkpoint's `quantization_config` or the user's `QuantConfig`. Part of `ModelConfig`, read by
`models/` and `modules/`. Must not know file formats or tensors.
"""

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tensorrt_lora.config.quant_config import QuantAlgo, QuantConfig


@dataclass(frozen=True, slots=True)
class ModelQuantization:
    """Quantised projections of the decoder layers.

    Attributes:
        quant_algo: the format.
        exclude_modules: patterns of the projections that are not quantised.
        in_checkpoint: whether the checkpoint holds quantised weights with their scales; else weights are quantised as
            they are loaded.
    """

    quant_algo: QuantAlgo
    exclude_modules: tuple[str, ...] = ()
    in_checkpoint: bool = False

    @classmethod
    def from_quant_config(cls, config: QuantConfig) -> "ModelQuantization":
        return cls(config.quant_algo, tuple(config.exclude_modules))

    def excludes(self, module: str) -> bool:
        """Whether the projection of this Hugging Face name ("model.layers.3.mlp.up_proj") is not quantised."""
        return any(_matches(pattern, module) for pattern in self.exclude_modules)


def _matches(pattern: str, module: str) -> bool:
    if pattern.startswith("re:"):
        return re.match(pattern[3:], module) is not None
    if "*" in pattern:
        return fnmatchcase(module, pattern)
    return f".{pattern}." in f".{module}."

"""The tensors of one adapter, bound to the sites of a model: what `SiteBinder` makes and `make_host_weights` copies."""

from dataclasses import dataclass, field

import torch

from tensorrt_lora.lora.lora_site import LoraSite

SERVED_DTYPES = {
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
}


@dataclass(frozen=True, slots=True)
class FileTensor:
    """A tensor as it is in the file, and its name there."""

    key: str
    values: torch.Tensor


@dataclass(slots=True)
class BoundModule:
    """One module of the file with the sites it adapts; several when it is a fused projection.

    Without A and B, only the base layer's bias was trained (PEFT's bias="all").
    """

    module: str  # the name of the module in the file
    sites: tuple[LoraSite, ...]  # in the order of lora_b's rows
    scale: float
    lora_a: FileTensor | None = None  # [rank, in]
    lora_b: FileTensor | None = None  # [sum(out), rank]
    lora_bias: FileTensor | None = None  # [sum(out)]
    base_bias: FileTensor | None = None  # [sum(out)]
    magnitude: FileTensor | None = None  # [sum(out)]

    @property
    def rank(self) -> int:
        return 0 if self.lora_a is None else self.lora_a.values.shape[0]

    @property
    def tensors(self) -> list[FileTensor]:
        """All that are there."""
        parts = (self.lora_a, self.lora_b, self.lora_bias, self.base_bias, self.magnitude)
        return [part for part in parts if part is not None]


@dataclass(slots=True)
class Binding:
    """What came of one adapter's tensors."""

    modules: list[BoundModule]
    notes: list[str] = field(default_factory=list)  # accepted, though it may not be what the user thinks
    not_compared: list[str] = field(default_factory=list)  # tensors taken for copies of the model's own

"""Which plan each projection of a forward runs with.

Chosen by `CudaGraphLoraManager` for a graph, read by `LoraLayer.forward_with_base`. Hashable: part of a graph's key.
"""

from dataclasses import dataclass
from typing import NamedTuple

from tensorrt_lora.lora.lora_plan import LoraPlan


class ProjectionShape(NamedTuple):
    """What tells the projections of a model apart, as far as their speed goes."""

    in_features: int
    out_features: int
    itemsize: int  # bytes of a stored weight

    def __str__(self) -> str:
        return f"{self.in_features}x{self.out_features} of {self.itemsize} byte{'s' * (self.itemsize > 1)}"


@dataclass(frozen=True, slots=True)
class LoraPlans:
    """One plan for all projections, but for those of some shapes."""

    default: LoraPlan
    by_shape: tuple[tuple[ProjectionShape, LoraPlan], ...] = ()

    def plan_for(self, shape: ProjectionShape) -> LoraPlan:
        return dict(self.by_shape).get(shape, self.default)

    def __str__(self) -> str:
        """ "fused", or "fused; 5120x51200 of 1 byte: both_beside"."""
        others = (f"{shape}: {plan.value}" for shape, plan in self.by_shape if plan is not self.default)
        return "; ".join([self.default.value, *others])

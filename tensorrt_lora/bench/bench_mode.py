"""What one engine is compared with itself in: the modes of the latency benchmark.

Owns the names in records and the LoRA plan behind each. Knows nothing of engines.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Final, Literal, TypeAlias

from tensorrt_lora.lora.lora_plan import LoraPlan

TUNED: Final = "tuned"
BenchPlan: TypeAlias = LoraPlan | Literal["tuned"] | None
"""One plan for all projections, what the engine's own table says of each, or a step without LoRA."""


class BenchMode(Enum):
    """How a batch runs; the same prompts in every mode."""

    BASE = "base"
    """No request has an adapter."""

    IDLE = "idle"
    """As base: what a user of the base model pays for LoRA being enabled. Measured on its own, so that a
    difference would show."""

    SEQUENTIAL = "sequential"
    """Every request has an adapter; LoRA follows the base."""

    OVERLAP = "overlap"
    """Every request has an adapter; shrink and expand run beside the base, TensorRT-LLM's shape."""

    BEST = "best"
    """Every request has an adapter; each projection runs as the engine's plan table says: what users get."""

    @property
    def uses_adapters(self) -> bool:
        return self not in (BenchMode.BASE, BenchMode.IDLE)

    @property
    def candidates(self) -> tuple[BenchPlan, ...]:
        """The plans that the mode may run with."""
        return _CANDIDATES[self]


_CANDIDATES: dict[BenchMode, tuple[BenchPlan, ...]] = {
    BenchMode.BASE: (None,),
    BenchMode.IDLE: (None,),
    BenchMode.SEQUENTIAL: (LoraPlan.SEQUENTIAL,),
    BenchMode.OVERLAP: (LoraPlan.BOTH_BESIDE,),
    BenchMode.BEST: (TUNED,),
}


def plans_of(modes: Sequence[BenchMode]) -> tuple[BenchPlan, ...]:
    """Every plan that some mode may run with, once."""
    return tuple(dict.fromkeys(plan for mode in modes for plan in mode.candidates))


def plan_name(plan: BenchPlan) -> str:
    """As records name it."""
    if isinstance(plan, LoraPlan):
        return plan.value
    return plan or "base only"

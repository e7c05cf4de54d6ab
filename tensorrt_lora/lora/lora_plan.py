"""How much of the LoRA branch runs beside the base projection."""

from enum import Enum


class LoraPlan(Enum):
    """What the auxiliary stream does while the base projection runs. Every plan gives the same bits.

    Without an auxiliary stream the branch runs after the base, whatever the plan.
    """

    SHRINK_BESIDE = "shrink_beside"
    """x @ A beside the base; the expand adds into the base output after the join."""

    BOTH_BESIDE = "both_beside"
    """x @ A and h @ B beside the base into a delta of their own; one addition after the join (TensorRT-LLM's shape)."""

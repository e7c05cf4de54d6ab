"""How the LoRA branch of a projection runs beside, or after, its base."""

from enum import Enum


class LoraPlan(Enum):
    """What runs on the auxiliary stream while the base projection runs. Every plan gives the same bits."""

    SEQUENTIAL = "sequential"
    """Nothing: x @ A follows the base, and the expand adds into the base output."""

    SHRINK_BESIDE = "shrink_beside"
    """x @ A beside the base; the expand adds into the base output after the join."""

    BOTH_BESIDE = "both_beside"
    """x @ A and h @ B beside the base, into a delta of their own; `lora_add` after the join (TensorRT-LLM's shape)."""

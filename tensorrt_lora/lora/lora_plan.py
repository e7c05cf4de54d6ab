"""How the LoRA branch of a projection runs: after its base, beside it, or in the kernels that are there anyway."""

from enum import Enum


class LoraPlan(Enum):
    """Every plan gives the same bits."""

    SEQUENTIAL = "sequential"
    """x @ A follows the base, and the expand adds into the base output."""

    SHRINK_BESIDE = "shrink_beside"
    """x @ A beside the base on the auxiliary stream; the expand adds into the base output after the join."""

    BOTH_BESIDE = "both_beside"
    """x @ A and h @ B beside the base on the auxiliary stream, into a delta of their own; `lora_add` after the join
    (TensorRT-LLM's shape)."""

    FUSED = "fused"
    """One kernel: x @ A by its first programs, h @ B in the last steps of the base's tiles. Where a projection does not
    allow it (many tokens, an embedding), it is SEQUENTIAL."""

    EXPAND_IN_CONSUMER = "expand_in_consumer"
    """x @ A by the first programs of the base's kernel, or beside the base where one launch does not serve both (many
    tokens); the op that reads gate and up next adds h @ B on the way. Where another op follows that can add, it is
    ADD_IN_CONSUMER; where none does FUSED, or SHRINK_BESIDE if that is not possible."""

    ADD_IN_CONSUMER = "add_in_consumer"
    """BOTH_BESIDE, but the op that reads the base output next adds the delta on the way. Where no such op follows it is
    BOTH_BESIDE."""

    @property
    def shares_base_launch(self) -> bool:
        return self in (LoraPlan.FUSED, LoraPlan.EXPAND_IN_CONSUMER)

    @property
    def in_launches_of_its_own(self) -> "LoraPlan":
        """What stands in for a plan that shares the base's launch, where that is not possible."""
        return LoraPlan.SHRINK_BESIDE if self is LoraPlan.EXPAND_IN_CONSUMER else LoraPlan.SEQUENTIAL

    @property
    def leaves_delta(self) -> bool:
        """Whether an op that can add, but not expand, is given a delta."""
        return self in (LoraPlan.ADD_IN_CONSUMER, LoraPlan.EXPAND_IN_CONSUMER)

    @property
    def has_delta(self) -> bool:
        """Whether B h is stored, and added by another kernel."""
        return self in (LoraPlan.BOTH_BESIDE, LoraPlan.ADD_IN_CONSUMER)

    @property
    def uses_aux_stream(self) -> bool:
        """Whether it has no other point than the second stream."""
        return self is LoraPlan.SHRINK_BESIDE or self.has_delta


def allowed_plans(*, overlap: bool) -> tuple[LoraPlan, ...]:
    """All plans, or those on one stream."""
    return tuple(plan for plan in LoraPlan if overlap or not plan.uses_aux_stream)

"""What `tensorrt-lora tune` measures.

Owns the options' names, bounds and defaults. Filled by the command line, read by `PlanBench`.
"""

from pydantic import Field, field_validator

from tensorrt_lora.bench.preset_projections import preset_projections
from tensorrt_lora.config.strict_base_model import StrictBaseModel
from tensorrt_lora.lora.batch_kind import BatchKind, batch_kinds
from tensorrt_lora.lora.lora_plans import ProjectionShape
from tensorrt_lora.models.projection import Projection


class PlanOptions(StrictBaseModel):
    """One run. Raises ValueError (pydantic's) for values out of bounds."""

    presets: tuple[str, ...] = Field(
        default=("qwen3-32b-fp8", "qwen3-8b-bf16"), min_length=1, description="Models, by the names of presets."
    )
    tokens: tuple[int, ...] = Field(
        default=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512), min_length=1, description="Rows of the input."
    )
    ranks: tuple[int, ...] = Field(default=(16, 32, 64, 128), min_length=1, description="Ranks of the adapters.")
    adapters: int = Field(
        default=8, ge=1, le=1024, description="Slots, and distinct adapters in a batch of several, if it has the rows."
    )

    @field_validator("tokens", "ranks")
    @classmethod
    def _check_counts(cls, counts: tuple[int, ...]) -> tuple[int, ...]:
        if min(counts) < 1:
            raise ValueError(f"{min(counts)} is none: a number of tokens or a rank is at least 1")
        return tuple(sorted(set(counts)))

    def kinds(self, rank: int) -> list[BatchKind]:
        """Every kind of batch to measure at one of the ranks."""
        return [kind for tokens in self.tokens for kind in batch_kinds(tokens, self.adapters, [rank])]

    def distinct_adapters(self, kind: BatchKind) -> int:
        """Adapters in a batch of this kind."""
        return min(self.adapters, kind.tokens) if kind.many else 1

    def projections(self) -> dict[str, Projection]:
        """One projection of each shape that the presets have, by what to call it ("qwen3-8b-bf16 q+k+v").

        Raises ValueError for an unknown preset.
        """
        named = [
            (f"{preset} {projection.name}", projection)
            for preset in self.presets
            for projection in preset_projections(preset)
        ]
        first: dict[ProjectionShape, str] = {}
        for name, projection in named:
            first.setdefault(projection.shape, name)
        return {name: projection for name, projection in named if first[projection.shape] == name}

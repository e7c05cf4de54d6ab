"""What `tensorrt-lora tune` measured on a device: how long each plan takes at each shape of projection.

Read by `CudaGraphLoraManager`, written by `bench/`, printed by `tensorrt-lora info --plan`. Tables of some devices come
with the package. Knows no tensors and no streams.
"""

import json
from bisect import bisect_left
from collections.abc import Collection
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from pydantic import Field, ValidationError

from tensorrt_lora.config.strict_base_model import StrictBaseModel
from tensorrt_lora.kernels.streamed_linear_config import MAX_STREAMED_TOKENS
from tensorrt_lora.lora.batch_kind import BatchKind
from tensorrt_lora.lora.lora_plan import LoraPlan
from tensorrt_lora.lora.lora_plans import LoraPlans, ProjectionShape

# What a plan must win by to stand in for the rule's. A table has no neighbours: at 2.9 % of o_proj by itself, in a step
# of Qwen3-32B on an H200 SHRINK_BESIDE was slower than ADD_IN_CONSUMER, by 0.8 % of all. And a graph saved is worth as
# much again.
_TIE = 1.03

# A step of more is long enough for its deltas to cost as much as their bytes: those of gate and up are left out. On an
# H200 that is 1.0 % slower in a prefill of 256 tokens of Qwen3-32B in FP8, 1.2 % faster in one of 512, 2.2 % of 2,048.
_LONG_STEP = 256


class PlanTimes(StrictBaseModel):
    """One row: a projection with its LoRA at one kind of batch."""

    in_features: int = Field(ge=1, description="K of the projection.")
    out_features: int = Field(ge=1, description="N, of all parts of a fused projection.")
    itemsize: int = Field(ge=1, le=4, description="Bytes of a stored weight.")
    tokens: int = Field(ge=1, description="Rows.")
    many: bool = Field(description="Whether there were several adapters.")
    rank: int = Field(ge=1, description="Rank of the adapters.")
    base: float = Field(gt=0, description="Microseconds without LoRA.")
    microseconds: dict[str, float] = Field(description="By plan, with LoRA.")

    @property
    def shape(self) -> ProjectionShape:
        return ProjectionShape(self.in_features, self.out_features, self.itemsize)

    @property
    def kind(self) -> BatchKind:
        return BatchKind(self.tokens, self.many, self.rank)


class PlanTableFile(StrictBaseModel):
    """The file's content."""

    device: str = Field(description="As CUDA names it.")
    measured_with: dict[str, str] = Field(description="Versions, the date, the command.")
    rows: list[PlanTimes] = Field(description="In any order.")

    @classmethod
    def read(cls, path: Path) -> "PlanTableFile":
        """The content of a file. Raises ValueError when there is none, or it is no table."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError as error:
            raise ValueError(f"lora_plan_table {path} cannot be read: {error.strerror}") from error
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise ValueError(
                f"lora_plan_table {path} is no plan table: {where}: {first['msg']}; write one with `tensorrt-lora tune`"
            ) from error

    def write(self, path: Path) -> None:
        """Write a file, a row on each line."""
        fields = self.model_dump(mode="json")
        rows = ",\n".join(json.dumps(row) for row in fields.pop("rows"))
        head = json.dumps(fields)
        path.write_text(f'{head[:-1]}, "rows": [\n{rows}\n]}}\n', encoding="utf-8")


@dataclass(slots=True)
class LoraPlanTable:
    """Rows by what they are asked for. Without rows, or for shapes that it does not have, a rule decides."""

    source: str = "no table"
    rows: dict[ProjectionShape, dict[BatchKind, PlanTimes]] = field(default_factory=dict)

    @classmethod
    def of(cls, content: PlanTableFile, source: str) -> "LoraPlanTable":
        table = cls(source)
        for row in content.rows:
            table.rows.setdefault(row.shape, {})[row.kind] = row
        return table

    @classmethod
    def read(cls, path: Path) -> "LoraPlanTable":
        """The table in a file. Raises ValueError when there is none, or it is not one."""
        return cls.of(PlanTableFile.read(path), str(path))

    @classmethod
    def shipped(cls, device_name: str) -> "LoraPlanTable":
        """The table that comes with the package for a device, or an empty one."""
        name = f"{device_name.lower().replace(' ', '-')}.json"
        file = resources.files("tensorrt_lora.lora.plan_tables").joinpath(name)
        if not file.is_file():
            return cls(f"no table for {device_name}")
        return cls.of(PlanTableFile.model_validate_json(file.read_bytes()), f"the table for {device_name}")

    def narrowed(self, shapes: Collection[ProjectionShape]) -> "LoraPlanTable":
        """Of some shapes alone: plans for those of other models would tell graphs apart that are the same."""
        return LoraPlanTable(self.source, {shape: rows for shape, rows in self.rows.items() if shape in shapes})

    def plans(self, kind: BatchKind, allowed: Collection[LoraPlan]) -> LoraPlans:
        """The fastest of the allowed plans at every shape.

        Among plans as fast it is the rule's, for every other set of plans is a graph more, or else the simplest.
        """
        default = default_plan(kind, allowed)
        by_shape = []
        for shape in sorted(self.rows):
            fastest = self._fastest(shape, kind, allowed)
            if fastest and default not in fastest:
                by_shape.append((shape, fastest[0]))
        return LoraPlans(default, tuple(by_shape))

    def row(self, shape: ProjectionShape, kind: BatchKind) -> PlanTimes | None:
        """The row whose tokens and rank are the next ones up from those asked for; None for more tokens than any.

        Of ranks beyond the largest it is the largest.
        """
        rows = {measured: row for measured, row in self.rows.get(shape, {}).items() if measured.many == kind.many}
        tokens = min((measured.tokens for measured in rows if measured.tokens >= kind.tokens), default=None)
        if tokens is None:
            return None
        ranks = sorted({measured.rank for measured in rows if measured.tokens == tokens})
        return rows[BatchKind(tokens, kind.many, _next_up(ranks, kind.rank))]

    def _fastest(self, shape: ProjectionShape, kind: BatchKind, allowed: Collection[LoraPlan]) -> list[LoraPlan]:
        """The plans that took the least time, as far as that can be told; none without a row."""
        row = self.row(shape, kind)
        measured = {} if row is None else row.microseconds
        times = {plan: measured[plan.value] for plan in LoraPlan if plan in allowed and plan.value in measured}
        return [plan for plan, time in times.items() if time <= min(times.values()) * _TIE]


def default_plan(kind: BatchKind, allowed: Collection[LoraPlan]) -> LoraPlan:
    """Beside the base where a second stream is allowed; without one a launch, if base and LoRA fit into it."""
    if LoraPlan.EXPAND_IN_CONSUMER in allowed and kind.tokens > _LONG_STEP:
        return LoraPlan.EXPAND_IN_CONSUMER
    if LoraPlan.ADD_IN_CONSUMER in allowed:
        return LoraPlan.ADD_IN_CONSUMER
    can_fuse = LoraPlan.FUSED in allowed and kind.tokens <= MAX_STREAMED_TOKENS
    return LoraPlan.FUSED if can_fuse else LoraPlan.SEQUENTIAL


def _next_up(values: list[int], wanted: int) -> int:
    return values[min(bisect_left(values, wanted), len(values) - 1)]

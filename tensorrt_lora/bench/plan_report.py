"""Which plan each projection runs with, as a table for people: `info --plan`, and the end of `tune`.

Asks a `LoraPlanTable` what `CudaGraphLoraManager` asks it.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from rich.table import Table

from tensorrt_lora.config.lora_config import LoraConfig
from tensorrt_lora.lora.batch_kind import BatchKind, batch_kinds, rank_kinds
from tensorrt_lora.lora.lora_plan import LoraPlan, allowed_plans
from tensorrt_lora.lora.lora_plan_table import LoraPlanTable
from tensorrt_lora.lora.lora_plans import ProjectionShape

OTHERS = ProjectionShape(0, 0, 0)
"""In place of a shape: one that no table has."""


def plan_report(
    table: LoraPlanTable, shapes: Mapping[str, ProjectionShape], sizes: Sequence[int], config: LoraConfig
) -> Table:
    """Columns are projections; rows are kinds of batches, with the sizes for which a kind has the same plans and times.

    Args:
        shapes: of the projections, by name.
        sizes: captured rows, rising.
        config: of the engine.
    """
    overlap = config.overlap_lora_and_base
    plans = allowed_plans(overlap=overlap)
    report = Table(
        "tokens",
        "adapters",
        "rank",
        *shapes,
        title=f"How LoRA runs in CUDA graphs, overlap_lora_and_base={overlap}",
        caption=f"Source: {table.source}. Beside a plan: microseconds beyond the base, where measured.",
    )
    none = "not in the graph" if config.cuda_graph_specialize_lora else "as with one adapter"
    report.add_row(_span(sizes), "none", "", *[none] * len(shapes), end_section=True)
    kinds = [kind for size in sizes for kind in batch_kinds(size, config.num_slots, rank_kinds(config.max_lora_rank))]
    kinds.sort(key=lambda kind: (kind.many, kind.rank, kind.tokens))
    cells = [(kind, _cells(table, shapes.values(), kind, plans)) for kind in kinds]
    for (many, rank, texts), same in groupby(cells, key=lambda item: (item[0].many, item[0].rank, item[1])):
        tokens = [kind.tokens for kind, _ in same]
        report.add_row(
            _span(tokens), "many" if many else "one", f"<= {rank}", *texts, end_section=tokens[-1] == sizes[-1]
        )
    return report


def _cells(
    table: LoraPlanTable, shapes: Iterable[ProjectionShape], kind: BatchKind, allowed: Sequence[LoraPlan]
) -> tuple[str, ...]:
    plans = table.plans(kind, allowed)
    return tuple(_cell(table, shape, kind, plans.plan_for(shape)) for shape in shapes)


def _cell(table: LoraPlanTable, shape: ProjectionShape, kind: BatchKind, plan: LoraPlan) -> str:
    row = table.row(shape, kind)
    if row is None or plan.value not in row.microseconds:
        return plan.value
    return f"{plan.value} {row.microseconds[plan.value] - row.base:+.1f}"


def _span(sizes: Sequence[int]) -> str:
    return str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"

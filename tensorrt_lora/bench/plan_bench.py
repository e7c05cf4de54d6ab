"""How long each `LoraPlan` takes at each shape of projection and kind of batch: the rows of a plan table.

Called by `tensorrt-lora tune`. Owns the order of things and what becomes of plans that do not run; a case is
`PlanCase`'s matter, the clock `TimedGraph`'s.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from rich.progress import Progress
from triton import TritonError

from tensorrt_lora.bench.bench_progress import bench_progress
from tensorrt_lora.bench.graph_timer import TimedGraph, time_in_turn
from tensorrt_lora.bench.plan_case import PlanCase
from tensorrt_lora.bench.plan_compiler import compile_ahead
from tensorrt_lora.bench.plan_options import PlanOptions
from tensorrt_lora.lora.batch_kind import BatchKind
from tensorrt_lora.lora.lora_plan import LoraPlan
from tensorrt_lora.lora.lora_plan_table import PlanTimes
from tensorrt_lora.models.projection import Projection

_REPEATS = 7


class PlanBench:
    """One run.

    Args:
        projections: what to measure, by name.
        options: at which batches.
        device: a CUDA device.
        processes: that compile kernels ahead; with 1, each is compiled as it is measured.
        progress: show progress bars on the terminal.
    """

    def __init__(
        self,
        projections: Mapping[str, Projection],
        options: PlanOptions,
        *,
        device: torch.device,
        processes: int = 1,
        progress: bool = False,
    ) -> None:
        self._projections = projections
        self._options = options
        self._device = device
        self._processes = processes
        self._progress = progress

    def run(self, save: Callable[[Sequence[PlanTimes]], None]) -> None:
        """Measure everything; `save` gets the rows of each projection when it is done."""
        with bench_progress(enabled=self._progress) as bar:
            if self._processes > 1:
                projections = list(self._projections.values())
                compile_ahead(projections, self._options, self._device, processes=self._processes, bar=bar)
            total = len(self._projections) * sum(len(self._options.kinds(rank)) for rank in self._options.ranks)
            task = bar.add_task("plans", total=total, detail="")
            for name, projection in self._projections.items():
                rows = []
                case = PlanCase(
                    projection,
                    num_adapters=self._options.adapters,
                    max_num_tokens=max(self._options.tokens),
                    device=self._device,
                )
                bases: dict[int, TimedGraph] = {}  # by tokens: adapters are nothing to them
                for rank in self._options.ranks:
                    case.set_adapters(rank)
                    for kind in self._options.kinds(rank):
                        label = f"{name}, {_describe(kind)}"
                        bar.update(task, detail=label)
                        rows.append(self._measure(projection, case, kind, bases, bar, label))
                        bar.advance(task)
                save(rows)
                del case, bases

    def _measure(
        self,
        projection: Projection,
        case: PlanCase,
        kind: BatchKind,
        bases: dict[int, TimedGraph],
        bar: Progress,
        label: str,
    ) -> PlanTimes:
        case.set_batch(kind.tokens, self._options.distinct_adapters(kind))
        if kind.tokens not in bases:
            bases[kind.tokens] = TimedGraph(case.links(None), self._device)
        graphs: dict[LoraPlan, TimedGraph] = {}
        for plan in case.plans():
            try:
                graphs[plan] = TimedGraph(case.links(plan), self._device)
            except (RuntimeError, ValueError, TritonError) as problem:
                text = f"{label}: {plan.value} is left out: {type(problem).__name__}: {str(problem).splitlines()[0]}"
                bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        base, *times = time_in_turn([bases[kind.tokens], *graphs.values()], _REPEATS)
        shape = projection.shape
        return PlanTimes(
            in_features=shape.in_features,
            out_features=shape.out_features,
            itemsize=shape.itemsize,
            tokens=kind.tokens,
            many=kind.many,
            rank=kind.rank,
            base=_microseconds(base),
            microseconds={plan.value: _microseconds(time) for plan, time in zip(graphs, times, strict=True)},
        )


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _describe(kind: BatchKind) -> str:
    return f"{kind.tokens} tokens, {'several adapters' if kind.many else 'one adapter'} of rank {kind.rank}"

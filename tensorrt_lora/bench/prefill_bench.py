"""`bench prefill`: single steps of many prompt tokens, the same prompts in every mode, over one engine.

Owns the order of measurements: modes take turns within each repeat, so that what drifts hits all of them.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tensorrt_lora.bench.bench_engine import BenchEngine
from tensorrt_lora.bench.bench_header import describe_run
from tensorrt_lora.bench.bench_mode import BenchMode, BenchPlan, plan_name, plans_of
from tensorrt_lora.bench.bench_progress import bench_progress
from tensorrt_lora.bench.prefill_flops import prefill_flops
from tensorrt_lora.bench.prefill_options import PrefillOptions
from tensorrt_lora.bench.prefill_records import PrefillRecord, PrefillResult
from tensorrt_lora.bench.workload import Workload

_TRIALS = 3  # of each plan; the first loads adapters and compiles kernels


@dataclass(frozen=True, slots=True)
class StepTimes:
    """One step: until the host has its tokens, and until the device has its work."""

    ms: float
    host_ms: float


class PrefillBench:
    """One run.

    Args:
        command: as it was typed, for the header.
        commit: of the code, for the header.
        progress: show progress on the error stream.

    Raises:
        ValueError: a device that is not there, too little memory.
    """

    def __init__(self, options: PrefillOptions, *, command: str, commit: str | None, progress: bool = False) -> None:
        self._options = options
        self._progress = progress
        start = time.perf_counter()
        self._engine = BenchEngine(
            options.preset,
            options.workloads(),
            lora_ranks=[options.lora_rank],
            plans=plans_of(options.modes),
            device=options.device,
            max_num_tokens=max(options.tokens),
            seed=options.seed,
            progress=progress,
        )
        seconds = time.perf_counter() - start
        header = describe_run(
            "prefill", options, self._engine, command=command, commit=commit, start_up_seconds=seconds
        )
        self._result = PrefillResult(header)

    def run(self, save: Callable[[PrefillResult], None]) -> PrefillResult:
        """Measure everything; `save` is called after each number of tokens with what there is so far."""
        workloads = self._options.workloads()
        with bench_progress(enabled=self._progress) as bar:
            task = bar.add_task("Measuring", total=len(workloads) * (self._options.repeats + 1), detail="")
            for workload in workloads:
                for detail in self._measure(workload):
                    bar.update(task, advance=1, detail=detail)
                save(self._result)
        self._engine.close()
        return self._result

    def _measure(self, workload: Workload) -> Iterator[str]:
        """All cells of one number of tokens; yields a line of progress after the trials and after each repeat."""
        plans = self._choose_plans(workload)
        modes = self._options.modes
        times: dict[BenchMode, list[StepTimes]] = {mode: [] for mode in modes}
        tokens = f"{workload.isl * workload.concurrency} tokens"
        yield tokens
        for repeat in range(self._options.repeats):
            first = repeat % len(modes)  # each repeat starts with another mode
            for mode in (*modes[first:], *modes[:first]):
                times[mode].append(self._step(workload, plans[mode]))
            yield ", ".join([tokens, *(f"{mode.value} {times[mode][-1].ms:.1f} ms" for mode in modes)])
        for mode in modes:
            record = self._record(workload, mode, plans[mode], times[mode], times.get(BenchMode.BASE))
            self._result.records.append(record)

    def _choose_plans(self, workload: Workload) -> dict[BenchMode, BenchPlan]:
        """The plan of each mode, by the fastest of a few steps with every plan; these also warm everything up."""
        trials = {
            plan: min(self._step(workload, plan, is_warm=trial > 0).ms for trial in range(_TRIALS))
            for plan in plans_of(self._options.modes)
        }
        return {mode: min(mode.candidates, key=lambda plan: trials[plan]) for mode in self._options.modes}

    def _step(self, workload: Workload, plan: BenchPlan, *, is_warm: bool = True) -> StepTimes:
        """Prefill all prompts; with their adapters on the device that is one step."""
        engine = self._engine.engine
        batch = self._engine.submit(workload, plan)
        steps, start = engine.num_steps, time.perf_counter()
        batch.prefill()
        end = time.perf_counter()
        if is_warm and engine.num_steps - steps != 1:
            raise ValueError(
                f"{workload.concurrency} prompts of {workload.isl} tokens took {engine.num_steps - steps} steps: "
                f"there is too little memory for their keys and values or their adapters; take fewer tokens"
            )
        return StepTimes((end - start) * 1e3, (engine.queued_at - start) * 1e3)

    def _record(
        self,
        workload: Workload,
        mode: BenchMode,
        plan: BenchPlan,
        times: list[StepTimes],
        base: list[StepTimes] | None,
    ) -> PrefillRecord:
        spread = (min(step.ms for step in times), max(step.ms for step in times))
        ms = statistics.median(step.ms for step in times)
        tokens = workload.isl * workload.concurrency
        flops = prefill_flops(self._engine.loaded.config, [workload.isl] * workload.concurrency)
        return PrefillRecord(
            bench="prefill",
            preset=self._options.preset,
            tokens=tokens,
            prompts=workload.concurrency,
            rank=self._options.lora_rank,
            adapters=workload.num_adapters,
            mix=workload.mix,
            mode=mode.value,
            plan=plan_name(plan),
            ms=ms,
            tokens_per_s=tokens / ms * 1e3,
            tflops=flops / ms / 1e9,
            lora_tax=median_tax(times, base),
            host_ms=statistics.median(step.host_ms for step in times),
            spread=spread,
        )


def median_tax(times: list[StepTimes], base: list[StepTimes] | None) -> float | None:
    """Median over the repeats of the time over base's of the same repeat, minus 1."""
    if base is None:
        return None
    return statistics.median(ours.ms / theirs.ms for ours, theirs in zip(times, base, strict=True)) - 1

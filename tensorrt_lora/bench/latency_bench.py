"""`bench latency`: batches of fixed lengths, the same prompts in every mode, over one engine.

Owns the order of measurements. All modes share weights, KV cache and adapter slots, and take turns within each
repeat, so that what drifts hits all of them.
"""

import statistics
import time
from collections.abc import Callable, Iterator

from tensorrt_lora.bench.bandwidth import measure_copy_bandwidth
from tensorrt_lora.bench.batch_run import BatchTimes
from tensorrt_lora.bench.bench_engine import BenchEngine
from tensorrt_lora.bench.bench_header import describe_run
from tensorrt_lora.bench.bench_mode import BenchMode, BenchPlan, plan_name, plans_of
from tensorrt_lora.bench.bench_progress import bench_progress
from tensorrt_lora.bench.byte_floor import ByteFloor
from tensorrt_lora.bench.latency_options import LatencyOptions
from tensorrt_lora.bench.latency_records import LatencyHeader, LatencyRecord, LatencyResult, median_tax
from tensorrt_lora.bench.workload import Workload
from tensorrt_lora.utils.device import resolve_device

_TRIAL_TOKENS = 65  # of each request in a trial: 64 decode steps tell plans apart, and most compilation is over


class LatencyBench:
    """One run.

    Args:
        command: as it was typed, for the header.
        commit: of the code, for the header.
        progress: show progress on the error stream.

    Raises:
        ValueError: a device that is not there, too little memory.
    """

    def __init__(self, options: LatencyOptions, *, command: str, commit: str | None, progress: bool = False) -> None:
        self._options = options
        self._progress = progress
        self._bandwidth = measure_copy_bandwidth(resolve_device(options.device))
        start = time.perf_counter()
        self._engine = BenchEngine(
            options.preset,
            options.workloads(),
            lora_ranks=options.adapter_ranks,
            plans=plans_of(options.modes),
            device=options.device,
            max_num_tokens=options.max_num_tokens,
            seed=options.seed,
            progress=progress,
        )
        self._floor = ByteFloor.of(self._engine.loaded, self._engine.adapter_bytes)
        self._result = LatencyResult(self._make_header(command, commit, time.perf_counter() - start))

    def run(self, save: Callable[[LatencyResult], None]) -> LatencyResult:
        """Measure everything; `save` is called after each concurrency with what there is so far."""
        workloads = self._options.workloads()
        per_workload = len(self._options.modes) * self._options.repeats + 1
        with bench_progress(enabled=self._progress) as bar:
            task = bar.add_task("Measuring", total=len(workloads) * per_workload, detail="")
            for workload in workloads:
                for detail in self._measure(workload):
                    bar.update(task, advance=1, detail=detail)
                save(self._result)
        self._engine.close()
        return self._result

    def _make_header(self, command: str, commit: str | None, start_up_seconds: float) -> LatencyHeader:
        run = describe_run(
            "latency", self._options, self._engine, command=command, commit=commit, start_up_seconds=start_up_seconds
        )
        sizes = {
            "weights": self._floor.weights,
            "kv_per_token": self._floor.kv_per_token,
            "adapter": max(self._floor.adapters),
        }
        return LatencyHeader.of(run, copy_bandwidth=self._bandwidth, step_bytes=sizes)

    def _measure(self, workload: Workload) -> Iterator[str]:
        """All cells of one concurrency; yields a line of progress after each batch, and after the trials."""
        plans = self._choose_plans(workload)
        yield f"concurrency {workload.concurrency}"
        modes = self._options.modes
        times: dict[BenchMode, list[BatchTimes]] = {mode: [] for mode in modes}
        for repeat in range(self._options.repeats):
            first = repeat % len(modes)  # each repeat starts with another mode
            for mode in (*modes[first:], *modes[:first]):
                batch = self._engine.submit(workload, plans[mode]).finish()
                times[mode].append(batch)
                yield f"concurrency {workload.concurrency}, {mode.value}: {batch.ms_per_token:.2f} ms per token"
        base = times.get(BenchMode.BASE)
        for mode in modes:
            self._result.records.append(self._record(workload, mode, times[mode], base))
        header = self._result.header
        header.host_ms_per_step[workload.concurrency] = {
            mode.value: statistics.median(batch.host_ms_per_step for batch in times[mode]) for mode in modes
        }
        if BenchMode.BEST in modes:
            header.best_plan[workload.concurrency] = plan_name(plans[BenchMode.BEST])

    def _choose_plans(self, workload: Workload) -> dict[BenchMode, BenchPlan]:
        """The plan of each mode, by a short batch with every plan; these also compile kernels.

        A shorter one before each loads the adapters. They arrive one by one, so that its steps are cut in other ways,
        and run other kernels, than those of all batches that follow.
        """
        tokens = min(workload.osl, _TRIAL_TOKENS)
        trials: dict[BenchPlan, float] = {}
        for plan in plans_of(self._options.modes):
            self._engine.submit(workload, plan, num_tokens=2).finish()
            trials[plan] = self._engine.submit(workload, plan, num_tokens=tokens).finish().ms_per_token
        names = {plan_name(plan): ms_per_token for plan, ms_per_token in trials.items()}
        self._result.header.trial_ms_per_token[workload.concurrency] = names
        return {mode: min(mode.candidates, key=lambda plan: trials[plan]) for mode in self._options.modes}

    def _record(
        self, workload: Workload, mode: BenchMode, times: list[BatchTimes], base: list[BatchTimes] | None
    ) -> LatencyRecord:
        e2e = [batch.e2e_s for batch in times]
        ms_per_token = statistics.median(batch.ms_per_token for batch in times)
        ranks = tuple(self._engine.adapter_ranks[adapter] for adapter in sorted(set(workload.adapter_ids())))
        floor = self._floor.milliseconds(workload, self._bandwidth, with_adapters=mode.uses_adapters)
        return LatencyRecord(
            bench="latency",
            preset=self._options.preset,
            isl=workload.isl,
            osl=workload.osl,
            concurrency=workload.concurrency,
            rank=max(ranks),
            adapters=len(ranks),
            mix=workload.mix,
            mode=mode.value,
            e2e_s=statistics.median(e2e),
            ms_per_token=ms_per_token,
            ttft_ms=statistics.median(batch.ttft_s for batch in times) * 1e3,
            tokens_per_s=workload.concurrency * workload.osl / statistics.median(e2e),
            lora_tax=median_tax(times, base),
            floor_ms=floor,
            floor_fraction=floor / ms_per_token,
            spread=(min(e2e), max(e2e)),
            ranks=ranks,
            adapter_bytes=self._floor.adapter_bytes(workload),
        )

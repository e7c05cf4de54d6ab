"""`bench throughput`: requests that arrive at given rates, the same stream in every mode, over one engine.

Owns the order of measurements and how mode best finds its plan. All modes share weights, KV cache and adapter slots.
"""

import time
from collections.abc import Callable, Iterator

from tensorrt_lora.bench.bench_engine import BenchEngine
from tensorrt_lora.bench.bench_header import describe_run
from tensorrt_lora.bench.bench_mode import BenchMode, BenchPlan, plan_name, plans_of
from tensorrt_lora.bench.bench_progress import bench_progress
from tensorrt_lora.bench.throughput_options import RequestRate, ThroughputOptions
from tensorrt_lora.bench.throughput_records import StreamTimes, ThroughputRecord, ThroughputResult
from tensorrt_lora.bench.throughput_run import ThroughputRun
from tensorrt_lora.config.cuda_graph_config import CudaGraphConfig

_TRIAL_TOKENS = 33  # of each request in a trial: 32 decode steps tell plans apart
_WARM_UP_TOKENS = 4


class ThroughputBench:
    """One run.

    Args:
        command: as it was typed, for the header.
        commit: of the code, for the header.
        progress: show progress on the error stream.

    Raises:
        ValueError: a device that is not there, too little memory.
    """

    def __init__(self, options: ThroughputOptions, *, command: str, commit: str | None, progress: bool = False) -> None:
        self._options = options
        self._progress = progress
        self._workload = options.workload()
        self._batch_sizes = CudaGraphConfig().resolve_batch_sizes(options.max_batch_size)
        start = time.perf_counter()
        self._engine = BenchEngine(
            options.preset,
            [self._workload.batch(size) for size in self._batch_sizes],
            lora_ranks=[options.lora_rank],
            plans=plans_of(options.modes),
            device=options.device,
            max_num_tokens=options.max_num_tokens,
            seed=options.seed,
            progress=progress,
            num_adapters=self._workload.num_adapters,
            mixed_steps=True,
        )
        seconds = time.perf_counter() - start
        header = describe_run(
            "throughput", options, self._engine, command=command, commit=commit, start_up_seconds=seconds
        )
        self._result = ThroughputResult(header)
        self._requests = self._workload.requests(self._engine.loaded.config.vocab_size)

    def run(self, save: Callable[[ThroughputResult], None]) -> ThroughputResult:
        """Measure everything; `save` is called after each rate with what there is so far."""
        rates, plans = self._options.request_rate, plans_of(self._options.modes)
        with bench_progress(enabled=self._progress) as bar:
            total = len(plans) + len(rates) * len(self._options.modes)
            task = bar.add_task("Measuring", total=total, detail="warm-up")
            for plan in plans:
                self._warm_up(plan)
                bar.advance(task)
            for rate in rates:
                for detail in self._measure(rate):
                    bar.update(task, advance=1, detail=detail)
                save(self._result)
        self._engine.close()
        return self._result

    def _warm_up(self, plan: BenchPlan) -> None:
        """The stream cut short, alone and all at once: loads every adapter, compiles kernels."""
        for num_requests in (1, len(self._requests)):
            self._stream([0.0] * num_requests, plan, max_tokens=_WARM_UP_TOKENS)

    def _measure(self, rate: RequestRate) -> Iterator[str]:
        """All cells of one rate; yields a line of progress after each."""
        arrivals = self._workload.arrivals(float(rate))
        base: StreamTimes | None = None
        batch_size = float(self._options.max_batch_size)
        for mode in self._options.modes:
            plan = self._choose_plan(mode, batch_size)
            times = self._stream(arrivals, plan)
            if mode is BenchMode.BASE:
                base = times
            batch_size = min(times.mean_concurrency, self._options.max_batch_size)
            self._result.records.append(self._record(rate, mode, plan, times, base))
            yield f"{rate} requests/s, {mode.value}: {times.requests_per_s:.2f} requests/s"

    def _stream(self, arrivals: list[float], plan: BenchPlan, *, max_tokens: int | None = None) -> StreamTimes:
        """Run as many of the requests as there are arrivals."""
        if plan is not None:
            self._engine.use_plan(plan)
        requests = [
            self._engine.create_request(
                request.prompt,
                min(request.num_tokens, max_tokens or request.num_tokens),
                None if plan is None else request.adapter,
            )
            for request in self._requests[: len(arrivals)]
        ]
        return StreamTimes.of(ThroughputRun(self._engine.executor, requests, arrivals).finish())

    def _choose_plan(self, mode: BenchMode, batch_size: float) -> BenchPlan:
        """The mode's plan; of several, the fastest for a batch as large as the mode before had on average."""
        if len(mode.candidates) == 1:
            return mode.candidates[0]
        captured = next(size for size in self._batch_sizes if size >= batch_size)
        batch, tokens = self._workload.batch(captured), min(self._workload.max_osl, _TRIAL_TOKENS)
        trials = {
            plan: self._engine.submit(batch, plan, num_tokens=tokens).finish().ms_per_token for plan in mode.candidates
        }
        return min(trials, key=lambda plan: trials[plan])

    def _record(
        self, rate: RequestRate, mode: BenchMode, plan: BenchPlan, times: StreamTimes, base: StreamTimes | None
    ) -> ThroughputRecord:
        options = self._options
        return ThroughputRecord(
            bench="throughput",
            preset=options.preset,
            isl=options.isl,
            osl=options.osl,
            length_spread=options.length_spread,
            request_rate=rate,
            num_requests=options.num_requests,
            rank=options.lora_rank,
            adapters=self._workload.num_adapters,
            mix=options.mix,
            mode=mode.value,
            plan=plan_name(plan),
            duration_s=times.duration_s,
            achieved_rate=times.achieved_rate,
            requests_per_s=times.requests_per_s,
            tokens_per_s=times.tokens_per_s,
            mean_concurrency=times.mean_concurrency,
            ttft_ms=times.ttft_ms,
            itl_ms=times.itl_ms,
            e2e_s=times.e2e_s,
            throughput_tax=None if base is None else base.requests_per_s / times.requests_per_s - 1,
            e2e_tax=None if base is None else times.e2e_s.p50 / base.e2e_s.p50 - 1,
        )

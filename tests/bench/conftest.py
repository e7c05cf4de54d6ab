"""Made-up results: a Chrome trace of a decode step with known kernels at known times, and records of a benchmark."""

import json
from pathlib import Path

import pytest

from tensorrt_lora.bench.bench_header import BenchHeader
from tensorrt_lora.bench.kernel_trace import KernelRun, read_kernels
from tensorrt_lora.bench.latency_records import LatencyHeader, LatencyRecord, LatencyResult
from tensorrt_lora.bench.percentiles import Percentiles
from tensorrt_lora.bench.prefill_records import PrefillRecord, PrefillResult
from tensorrt_lora.bench.throughput_options import RequestRate
from tensorrt_lora.bench.throughput_records import ThroughputRecord, ThroughputResult

MAIN, AUX = 7, 20
NUM_LAYERS = 4
LAYER_US = 100.0

QKV = "nvjet_tst_64x8_64x16_4x1_v_bz_TNT"
DOWN = "void cublasLt::splitKreduce_kernel<32, 16, int, float>(cublasLt::cublasSplitKParams<float>)"
ATTENTION = "void flashinfer::BatchDecodeWithPagedKVCacheKernel<(flashinfer::PosEncodingMode)0>(Params)"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, T>(int)"
SHRINK, EXPAND = "_lora_shrink_kernel", "_lora_expand_kernel"

# (name, stream, start within the layer, microseconds). The expand ends after its base; the last shrink runs alone.
LAYER: list[tuple[str, int, float, float]] = [
    (QKV, MAIN, 0.0, 30.0),
    (SHRINK, AUX, 2.0, 10.0),
    (EXPAND, AUX, 20.0, 15.0),
    (ADD, MAIN, 36.0, 2.0),
    (ATTENTION, MAIN, 40.0, 20.0),
    (SHRINK, AUX, 62.0, 4.0),
    (DOWN, MAIN, 70.0, 20.0),
]


@pytest.fixture
def trace_file(tmp_path: Path) -> Path:
    """Events out of order, with what else a trace holds: host calls, copies, metadata."""
    events: list[dict[str, object]] = [
        {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "ts": 5.0, "dur": 3.0, "args": {}},
        {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD", "ts": 7.0, "dur": 1.0, "args": {"stream": MAIN}},
    ]
    for layer in range(NUM_LAYERS):
        for name, stream, start, microseconds in LAYER:
            at = 1000.0 + layer * LAYER_US + start
            kernel = {"ph": "X", "cat": "kernel", "name": name, "ts": at, "dur": microseconds}
            events.insert(0, {**kernel, "args": {"stream": stream, "grid": [1, 1, 1]}})
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


@pytest.fixture
def kernels(trace_file: Path) -> list[KernelRun]:
    return read_kernels(trace_file)


def _make_record(concurrency: int, mode: str, e2e_s: float, tax: float | None) -> LatencyRecord:
    return LatencyRecord(
        bench="latency",
        preset="qwen3-8b-bf16",
        isl=256,
        osl=256,
        concurrency=concurrency,
        rank=32,
        adapters=1,
        mix="identical",
        mode=mode,
        e2e_s=e2e_s,
        ms_per_token=e2e_s * 4,
        ttft_ms=20.0,
        tokens_per_s=256 * concurrency / e2e_s,
        lora_tax=tax,
        floor_ms=3.6,
        floor_fraction=3.6 / (e2e_s * 4),
        spread=(e2e_s - 0.01, e2e_s + 0.01),
        ranks=(32,),
        adapter_bytes=174_000_000,
    )


@pytest.fixture
def latency_result() -> LatencyResult:
    header = LatencyHeader(
        bench="latency",
        command="tensorrt-lora bench latency --preset qwen3-8b-bf16",
        commit="abc",
        started="2026-01-01T00:00:00+00:00",
        hardware={"device": "cuda:0", "name": "NVIDIA H200"},
        versions={"torch": "2.11.0"},
        options={"preset": "qwen3-8b-bf16", "isl": 256, "osl": 256, "lora_rank": 32, "mix": "identical", "repeats": 3},
        copy_bandwidth=4.3e12,
        step_bytes={"weights": 15_000_000_000, "kv_per_token": 147_456, "adapter": 174_000_000},
        load_seconds=5.0,
        capture_seconds=9.5,
        graph_memory={"1 base only": 2**20, "1 both_beside": 3 * 2**20},
        best_plan={1: "shrink_beside", 8: "both_beside"},
        host_ms_per_step={size: {"base": 0.4, "sequential": 0.6, "overlap": 0.7} for size in (1, 8)},
    )
    records = [
        _make_record(concurrency, mode, e2e_s, tax)
        for concurrency in (1, 8)
        for mode, e2e_s, tax in (("base", 1.0, 0.0), ("sequential", 1.25, 0.25), ("overlap", 1.125, 0.125))
    ]
    return LatencyResult(header, records)


def _make_cell(rate: RequestRate, mode: str, requests_per_s: float, e2e_p50: float) -> ThroughputRecord:
    base_requests_per_s = 4.0 if rate == 4 else 32.0
    return ThroughputRecord(
        bench="throughput",
        preset="qwen3-8b-bf16",
        isl=256,
        osl=256,
        length_spread=0.5,
        request_rate=rate,
        num_requests=128,
        rank=32,
        adapters=1,
        mix="identical",
        mode=mode,
        plan="base only" if mode == "base" else mode,
        duration_s=128 / requests_per_s,
        achieved_rate=None if rate == "inf" else 3.9,
        requests_per_s=requests_per_s,
        tokens_per_s=256 * requests_per_s,
        mean_concurrency=40.0,
        ttft_ms=Percentiles(50.0, 44.0, 80.0, 95.0),
        itl_ms=Percentiles(12.0, 11.0, 14.0, 24.0),
        e2e_s=Percentiles(3.0, e2e_p50, 5.0, 6.0),
        throughput_tax=base_requests_per_s / requests_per_s - 1,
        e2e_tax=e2e_p50 / 2.0 - 1,
    )


def _make_header(bench: str, options: dict[str, object]) -> BenchHeader:
    return BenchHeader(
        bench=bench,
        command=f"tensorrt-lora bench {bench} --preset qwen3-8b-bf16",
        commit="abc",
        started="2026-01-01T00:00:00+00:00",
        hardware={"device": "cuda:0", "name": "NVIDIA H200"},
        versions={"torch": "2.11.0"},
        options={"preset": "qwen3-8b-bf16", "lora_rank": 32, "mix": "identical", **options},
        load_seconds=5.0,
        capture_seconds=9.5,
        graph_memory={"1 base only": 2**20},
    )


@pytest.fixture
def throughput_result() -> ThroughputResult:
    options = {"isl": 256, "osl": 256, "length_spread": 0.5, "num_requests": 128}
    cells = [
        *[(4.0, "base", 4.0, 2.0), (4.0, "sequential", 4.0, 2.75)],
        *[("inf", "base", 32.0, 2.0), ("inf", "sequential", 24.0, 2.75)],
    ]
    return ThroughputResult(_make_header("throughput", options), [_make_cell(*cell) for cell in cells])


@pytest.fixture
def prefill_result() -> PrefillResult:
    def make_record(tokens: int, mode: str, ms: float, tax: float) -> PrefillRecord:
        return PrefillRecord(
            bench="prefill",
            preset="qwen3-8b-bf16",
            tokens=tokens,
            prompts=1,
            rank=32,
            adapters=1,
            mix="identical",
            mode=mode,
            plan="base only" if mode == "base" else mode,
            ms=ms,
            tokens_per_s=tokens / ms * 1e3,
            tflops=120.0 * tokens / 8 / ms,
            lora_tax=tax,
            host_ms=12.5,
            spread=(ms - 1, ms + 20),
        )

    cells = [(4096, "base", 100.0, 0.0), (8192, "base", 200.0, 0.0), (8192, "sequential", 230.0, 0.15)]
    header = _make_header("prefill", {"prompts": 1, "repeats": 10})
    return PrefillResult(header, [make_record(*cell) for cell in cells])

"""The whole throughput benchmark on the CPU: what is recorded, never how fast it was."""

import json
from pathlib import Path

import pytest

from tensorrt_lora.bench.bench_mode import TUNED, BenchMode
from tensorrt_lora.bench.throughput_bench import ThroughputBench
from tensorrt_lora.bench.throughput_options import ThroughputOptions
from tensorrt_lora.bench.throughput_records import ThroughputResult

KEYS = [
    *("bench", "preset", "isl", "osl", "length_spread", "request_rate", "num_requests", "rank", "adapters", "mix"),
    *("mode", "plan", "duration_s", "achieved_rate", "requests_per_s", "tokens_per_s", "mean_concurrency"),
    *("ttft_ms", "itl_ms", "e2e_s", "throughput_tax", "e2e_tax"),
]
OPTIONS = ThroughputOptions(
    preset="tiny",
    isl=6,
    osl=4,
    length_spread=0.5,
    request_rate=(200.0, "inf"),
    num_requests=6,
    lora_rank=4,
    mix="distinct",
    adapters=5,
    max_batch_size=3,
    device="cpu",
)


@pytest.fixture(scope="module")
def saved() -> list[int]:
    return []


@pytest.fixture(scope="module")
def result(saved: list[int]) -> ThroughputResult:
    bench = ThroughputBench(OPTIONS, command="tensorrt-lora bench throughput", commit="abc")
    return bench.run(lambda result: saved.append(len(result.records)))


def test_writes_a_header_and_one_record_per_cell(result: ThroughputResult, saved: list[int], tmp_path: Path) -> None:
    result.write(tmp_path / "throughput.jsonl")
    header, *records = map(json.loads, (tmp_path / "throughput.jsonl").read_text().splitlines())
    assert (header["record"], header["bench"], header["commit"]) == ("header", "throughput", "abc")
    assert header["options"]["request_rate"] == [200.0, "inf"] and header["load_seconds"] > 0
    assert [list(record) for record in records] == [KEYS] * 8
    assert list(records[0]["itl_ms"]) == ["mean", "p50", "p90", "p99"]
    modes = ["base", "sequential", "overlap", "best"]
    assert [(record["request_rate"], record["mode"]) for record in records] == [
        (rate, mode) for rate in (200.0, "inf") for mode in modes
    ]
    assert saved == [4, 8]


def test_records_are_consistent(result: ThroughputResult) -> None:
    # Drawn from 2 to 6 tokens each.
    tokens = sum(request.num_tokens for request in OPTIONS.workload().requests(512))
    for record in result.records:
        assert record.adapters == 5 and record.rank == 4
        assert record.requests_per_s == pytest.approx(6 / record.duration_s)
        assert record.tokens_per_s == pytest.approx(tokens / record.duration_s)
        assert 0 < record.mean_concurrency <= 6
        for values in (record.ttft_ms, record.itl_ms, record.e2e_s):
            assert 0 < values.p50 <= values.p90 <= values.p99
        assert record.ttft_ms.p50 < record.e2e_s.p50 * 1e3
        assert record.e2e_s.p99 <= record.duration_s
        assert (record.achieved_rate is None) == (record.request_rate == "inf")


def test_taxes_are_over_base_at_the_same_rate(result: ThroughputResult) -> None:
    cells = {(record.request_rate, record.mode): record for record in result.records}
    for rate in OPTIONS.request_rate:
        base, overlap = cells[rate, "base"], cells[rate, "overlap"]
        assert (base.throughput_tax, base.e2e_tax, base.plan) == (0.0, 0.0, "base only")
        assert overlap.throughput_tax == pytest.approx(base.requests_per_s / overlap.requests_per_s - 1)
        assert overlap.e2e_tax == pytest.approx(overlap.e2e_s.p50 / base.e2e_s.p50 - 1)
        assert overlap.plan == "both_beside"
        assert cells[rate, "best"].plan == TUNED


def test_best_alone_needs_no_other_mode() -> None:
    options = OPTIONS.model_copy(update={"modes": (BenchMode.BEST,), "request_rate": ("inf",), "num_requests": 1})
    (record,) = ThroughputBench(options, command="", commit=None).run(lambda _: None).records
    assert record.mode == "best" and record.throughput_tax is None and record.e2e_tax is None

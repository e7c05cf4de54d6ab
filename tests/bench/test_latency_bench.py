"""The whole latency benchmark on the CPU: what is recorded, never how fast it was."""

import json
import math
from pathlib import Path

import pytest
import torch

from tensorrt_lora.bench.bench_mode import TUNED, BenchMode
from tensorrt_lora.bench.latency_bench import LatencyBench
from tensorrt_lora.bench.latency_options import LatencyOptions
from tensorrt_lora.bench.latency_records import LatencyResult

KEYS = [
    *("bench", "preset", "isl", "osl", "concurrency", "rank", "adapters", "mix", "mode"),
    *("e2e_s", "ms_per_token", "ttft_ms", "tokens_per_s", "lora_tax", "floor_ms", "floor_fraction", "spread"),
    *("ranks", "adapter_bytes"),
]


@pytest.fixture(scope="module")
def saved() -> list[int]:
    return []


@pytest.fixture(scope="module")
def result(saved: list[int]) -> LatencyResult:
    options = LatencyOptions(
        preset="tiny", isl=6, osl=4, concurrency=(1, 2), lora_rank=4, mix="distinct", repeats=2, device="cpu"
    )
    bench = LatencyBench(options, command="tensorrt-lora bench latency", commit="abc")
    return bench.run(lambda result: saved.append(len(result.records)))


def test_writes_a_header_and_one_record_per_cell(result: LatencyResult, tmp_path: Path) -> None:
    result.write(tmp_path / "latency.jsonl")
    header, *records = map(json.loads, (tmp_path / "latency.jsonl").read_text().splitlines())
    assert header["record"] == "header"
    assert [list(record) for record in records] == [KEYS] * 10
    cells = [(record["concurrency"], record["mode"]) for record in records]
    modes = ["base", "idle", "sequential", "overlap", "best"]
    assert cells == [(concurrency, mode) for concurrency in (1, 2) for mode in modes]


def test_header(result: LatencyResult) -> None:
    header = result.header
    assert (header.command, header.commit) == ("tensorrt-lora bench latency", "abc")
    assert header.hardware["device"].startswith(("cpu", "cuda")) and header.versions["torch"]
    assert header.options["isl"] == 6
    assert header.copy_bandwidth > 0 and header.load_seconds > 0
    assert header.graph_memory == {} and header.capture_seconds == 0.0  # no graphs on the CPU
    assert set(header.best_plan) == {1, 2}
    assert set(header.best_plan.values()) == {TUNED}
    for concurrency in (1, 2):
        hosts = header.host_ms_per_step[concurrency]
        assert set(hosts) == {mode.value for mode in BenchMode} and min(hosts.values()) > 0


def test_records_are_consistent(result: LatencyResult) -> None:
    for record in result.records:
        assert (record.bench, record.preset, record.isl, record.osl, record.rank) == ("latency", "tiny", 6, 4, 4)
        assert record.adapters == record.concurrency and record.mix == "distinct"
        assert record.spread[0] <= record.e2e_s <= record.spread[1]
        assert 0 < record.ttft_ms < record.e2e_s * 1e3
        assert record.ms_per_token > 0
        assert record.tokens_per_s == pytest.approx(record.concurrency * 4 / record.e2e_s)
        assert record.floor_ms > 0
        assert record.floor_fraction == pytest.approx(record.floor_ms / record.ms_per_token)
        assert record.lora_tax is not None and math.isfinite(record.lora_tax)


def test_base_has_no_tax_and_adapters_raise_the_floor(result: LatencyResult) -> None:
    cells = {(record.concurrency, record.mode): record for record in result.records}
    for concurrency in (1, 2):
        assert cells[concurrency, "base"].lora_tax == 0.0
        assert cells[concurrency, "idle"].floor_ms == cells[concurrency, "base"].floor_ms
        adapters = cells[concurrency, "overlap"].floor_ms - cells[concurrency, "base"].floor_ms
        expected = concurrency * result.header.step_bytes["adapter"] / result.header.copy_bandwidth * 1e3
        assert adapters == pytest.approx(expected)


def test_saves_after_each_concurrency(result: LatencyResult, saved: list[int]) -> None:
    assert saved == [5, 10]


def test_without_base_there_is_no_tax() -> None:
    options = LatencyOptions(
        preset="tiny", isl=4, osl=3, concurrency=(1,), lora_rank=4, modes=(BenchMode.OVERLAP,), repeats=1, device="cpu"
    )
    (record,) = LatencyBench(options, command="", commit=None).run(lambda _: None).records
    assert record.lora_tax is None


def test_ranks_in_turn_are_recorded_and_counted() -> None:
    options = LatencyOptions(
        **{"preset": "tiny", "isl": 4, "osl": 3, "concurrency": (32,), "mix": "zipf", "adapters": 8, "device": "cpu"},
        lora_ranks=(2, 4, 8),
        modes=(BenchMode.BASE, BenchMode.SEQUENTIAL),
        repeats=1,
    )
    result = LatencyBench(options, command="", commit=None).run(lambda _: None)
    base, lora = result.records
    # Of 8 adapters the seed draws some, numbered by first use.
    assert 3 < lora.adapters <= 8 and lora.rank == 8
    assert lora.ranks == tuple((2, 4, 8)[adapter % 3] for adapter in range(lora.adapters))
    largest = result.header.step_bytes["adapter"]
    assert lora.adapter_bytes == sum(lora.ranks) * largest // 8
    added = (lora.floor_ms - base.floor_ms) / 1e3 * result.header.copy_bandwidth
    assert added == pytest.approx(lora.adapter_bytes)


@pytest.mark.gpu
def test_on_cuda_every_mode_has_its_graphs() -> None:
    options = LatencyOptions(preset="tiny", isl=16, osl=8, concurrency=(1, 4), lora_rank=8, repeats=1, device="cuda")
    result = LatencyBench(options, command="", commit=None).run(lambda _: None)
    plans = ["base only", "sequential", "both_beside", "add_in_consumer"]  # the last is what the rule says
    sizes = ["1", "4", *(f"prefill {tokens}" for tokens in (16, 64))]
    assert set(result.header.graph_memory) == {f"{size} {plan}" for size in sizes for plan in plans}
    assert result.header.capture_seconds > 0
    assert len(result.records) == 10 and torch.cuda.is_available()

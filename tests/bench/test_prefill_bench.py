"""The whole prefill benchmark on the CPU: what is recorded, never how fast it was."""

import json
from pathlib import Path

import pytest

from tensorrt_lora.bench.bench_mode import BenchMode
from tensorrt_lora.bench.prefill_bench import PrefillBench, StepTimes, median_tax
from tensorrt_lora.bench.prefill_options import PrefillOptions
from tensorrt_lora.bench.prefill_records import PrefillResult

KEYS = [
    *("bench", "preset", "tokens", "prompts", "rank", "adapters", "mix", "mode", "plan"),
    *("ms", "tokens_per_s", "tflops", "lora_tax", "host_ms", "spread"),
]


@pytest.fixture(scope="module")
def result() -> PrefillResult:
    options = PrefillOptions(
        preset="tiny",
        tokens=(16, 48),
        prompts=2,
        lora_rank=4,
        mix="distinct",
        modes=tuple(BenchMode),
        repeats=2,
        device="cpu",
    )
    saved: list[int] = []
    bench = PrefillBench(options, command="tensorrt-lora bench prefill", commit="abc")
    result = bench.run(lambda result: saved.append(len(result.records)))
    assert saved == [5, 10]
    return result


def test_writes_a_header_and_one_record_per_cell(result: PrefillResult, tmp_path: Path) -> None:
    result.write(tmp_path / "prefill.jsonl")
    header, *records = map(json.loads, (tmp_path / "prefill.jsonl").read_text().splitlines())
    assert (header["record"], header["bench"], header["commit"]) == ("header", "prefill", "abc")
    assert [list(record) for record in records] == [KEYS] * 10
    modes = ["base", "idle", "sequential", "overlap", "best"]
    assert [(record["tokens"], record["mode"]) for record in records] == [
        (tokens, mode) for tokens in (16, 48) for mode in modes
    ]


def test_records_are_consistent(result: PrefillResult) -> None:
    for record in result.records:
        assert (record.prompts, record.adapters, record.rank) == (2, 2, 4)
        assert record.spread[0] <= record.ms <= record.spread[1]
        assert 0 < record.host_ms <= record.ms
        assert record.tokens_per_s == pytest.approx(record.tokens / record.ms * 1e3)
        assert record.tflops > 0
        assert (record.plan == "base only") == (record.mode in ("base", "idle"))
        assert record.lora_tax is not None and (record.mode != "base" or record.lora_tax == 0.0)


def test_the_tax_pairs_repeats() -> None:
    ours, base = ([StepTimes(ms, 0.1) for ms in times] for times in ((1.1, 1.2, 2.4), (1.0, 1.0, 2.0)))
    assert median_tax(ours, base) == pytest.approx(0.2)
    assert median_tax(ours, None) is None


def test_more_than_one_step_is_refused() -> None:
    options = PrefillOptions(preset="tiny", tokens=(16,), modes=(BenchMode.BASE,), repeats=1, device="cpu")
    bench = PrefillBench(options, command="", commit=None)
    (workload,) = options.workloads()
    bench._engine.executor.scheduler._max_num_tokens = 8
    bench._engine.executor.scheduler._enable_chunked_prefill = True
    with pytest.raises(ValueError, match="1 prompts of 16 tokens took 2 steps"):
        bench._step(workload, None)

"""The whole serving benchmark on the CPU, server process and clients: what is recorded, never how fast it was."""

import json
from pathlib import Path

import pytest
from rich.console import Console

from tensorrt_lora.bench.serve_bench import ServeBench
from tensorrt_lora.bench.serve_options import ServeOptions
from tensorrt_lora.bench.serve_records import ServeResult
from tensorrt_lora.bench.serve_report import conclusion, serve_table, write_markdown
from tensorrt_lora.bench.served_engine import ServedEngine
from tensorrt_lora.config.llm_args import TorchLlmArgs

OPTIONS = ServeOptions(
    preset="tiny", isl=6, osl=5, concurrency=3, rounds=2, repeats=2, adapters=2, lora_rank=4, clients=2, device="cpu"
)


@pytest.fixture(scope="module")
def saved() -> list[int]:
    return []


@pytest.fixture(scope="module")
def result(saved: list[int]) -> ServeResult:
    bench = ServeBench(OPTIONS, command="tensorrt-lora bench serve", commit="abc")
    return bench.run(lambda result: saved.append(len(result.records)))


def test_a_header_and_a_record_for_each_repeat(result: ServeResult, saved: list[int], tmp_path: Path) -> None:
    result.write(tmp_path / "serve.jsonl")
    header, *records = map(json.loads, (tmp_path / "serve.jsonl").read_text().splitlines())
    assert (header["record"], header["bench"], header["commit"]) == ("header", "serve", "abc")
    assert header["options"]["rounds"] == 2 and header["versions"]["uvicorn"]
    assert saved == [1, 2] and [record["repeat"] for record in records] == [0, 1]
    for record in records:
        assert (record["tokens"], record["num_requests"]) == (6 * 5, 6)
        assert record["ratio"] == pytest.approx(record["offline_s"] / record["served_s"])
        assert record["served_tokens_per_s"] == pytest.approx(30 / record["served_s"])
        assert 0 < record["ttft_ms"]["p50"] <= record["e2e_s"]["p99"] * 1e3
        assert 1 <= record["tokens_per_event"] <= 5


def test_report(result: ServeResult, tmp_path: Path) -> None:
    console = Console(width=80)
    with console.capture() as capture:
        console.print(serve_table(result))
    assert "tiny: 3 streams, 6 tokens in, 5 out" in capture.get() and "…" not in capture.get()
    write_markdown(result, tmp_path / "serve.md")
    text = (tmp_path / "serve.md").read_text()
    assert f"| 1 | {result.records[1].offline_tokens_per_s:.0f} |" in text
    assert f"{result.ratio:.1%} of the offline engine's throughput (median of 2)" in text
    assert conclusion(result).startswith("served at ")


def test_a_server_that_does_not_start(tmp_path: Path) -> None:
    args = TorchLlmArgs(model=str(tmp_path / "nothing"), device="cpu")
    with pytest.raises(ValueError, match=r"(?s)the server did not start:.*nothing"):
        ServedEngine(args, {}, max_sequences=1, directory=tmp_path)

"""`tensorrt-lora bench serve`: mistakes are one message; the measurement itself is in tests/bench."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tensorrt_lora.bench.bench_header import RunHeader
from tensorrt_lora.bench.percentiles import Percentiles
from tensorrt_lora.bench.run_environment import hardware
from tensorrt_lora.bench.serve_bench import ServeBench
from tensorrt_lora.bench.serve_records import ServeRecord, ServeResult
from tensorrt_lora.cli.main import app

TIMES = Percentiles(1.0, 1.0, 2.0, 3.0)


def run(*options: str):
    return CliRunner().invoke(app, ["bench", "serve", *options])


def test_writes_records_and_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(bench: ServeBench, save) -> ServeResult:
        options = bench._options
        record = ServeRecord(
            "serve", options.preset, options.isl, options.osl, options.concurrency, 4, options.adapters,
            options.lora_rank, 0, 100, 2.0, 2.5, 50.0, 40.0, 0.8, TIMES, TIMES, TIMES, 1.0,
        )  # fmt: skip
        header = RunHeader(
            bench="serve", command="c", commit="abc", started="now", hardware=hardware(), versions={},
            options=options.model_dump(mode="json"),
        )  # fmt: skip
        result = ServeResult(header, [record])
        save(result)
        return result

    monkeypatch.setattr(ServeBench, "run", measure)
    result = run("--preset", "tiny", "--concurrency", "2", "--output", str(tmp_path), "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert "served at 80.0% of the offline engine's throughput" in result.output
    assert {path.name for path in tmp_path.iterdir()} == {"serve-tiny-c2.jsonl", "serve-tiny-c2.md"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--preset", "nothing"], "no preset 'nothing'"),
        (["--preset", "tiny", "--concurrency", "0"], "concurrency"),
        (["--preset", "tiny", "--osl", "1"], "osl"),
    ],
)
def test_mistakes(options: list[str], message: str, tmp_path: Path) -> None:
    result = run(*options, "--output", str(tmp_path / "new"))
    assert result.exit_code == 2
    assert message in result.output and "Traceback" not in result.output
    assert not (tmp_path / "new").exists()

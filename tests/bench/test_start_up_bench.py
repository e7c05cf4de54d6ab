from pathlib import Path

from typer.testing import CliRunner

from tensorrt_lora.bench.start_up_bench import measure_start_up
from tensorrt_lora.cli.main import app


def test_a_start_on_the_cpu_has_no_graphs() -> None:
    result = measure_start_up("tiny", lora_rank=8, max_loras=2, device="cpu", progress=False)
    assert result.load_seconds > 0 and result.engine_seconds > 0
    assert (result.num_graphs, result.graph_bytes) == (0, 0)
    assert result.slot_bytes > 0


def test_the_command_prints_and_writes(tmp_path: Path) -> None:
    output = tmp_path / "startup.jsonl"
    command = ["bench", "startup", "--preset", "tiny", "--device", "cpu", "--output", str(output)]
    run = CliRunner().invoke(app, command)
    assert run.exit_code == 0, run.output
    assert "0 graphs" in run.output and len(output.read_text().splitlines()) == 2

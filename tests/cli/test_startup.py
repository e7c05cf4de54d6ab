import json
from pathlib import Path

from typer.testing import CliRunner

from tensorrt_lora.cli.main import app


def test_the_result_is_written_where_nothing_was(tmp_path: Path) -> None:
    path = tmp_path / "new" / "startup.jsonl"
    options = ["--preset", "tiny", "--device", "cpu", "--lora-rank", "4", "--max-loras", "1", "--output", str(path)]
    result = CliRunner().invoke(app, ["bench", "startup", *options])
    assert result.exit_code == 0, result.output
    header, record = map(json.loads, path.read_text().splitlines())
    assert header["bench"] == "startup" and "torch" in header
    assert record["preset"] == "tiny" and record["num_graphs"] == 0 and record["load_seconds"] > 0

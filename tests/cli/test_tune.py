"""`tensorrt-lora tune`: from options to the table, with made-up times."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from tensorrt_lora.bench.preset_projections import preset_projections
from tensorrt_lora.cli import tune as tune_module
from tensorrt_lora.cli.main import app
from tensorrt_lora.lora.lora_plan import LoraPlan
from tensorrt_lora.lora.lora_plan_table import LoraPlanTable, PlanTableFile, PlanTimes

TINY = ("--preset", "tiny", "--tokens", "1,2", "--ranks", "16", "--adapters", "2")


class FakeBench:
    """Every plan takes as long as its name, and 8 us where ranks are larger than 16."""

    def __init__(self, projections, options, *, device, processes, progress) -> None:
        self._projections, self._options = projections, options

    def run(self, save: Callable[[Sequence[PlanTimes]], None]) -> None:
        for projection in self._projections.values():
            shape = projection.shape._asdict()
            kinds = [kind for rank in self._options.ranks for kind in self._options.kinds(rank)]
            times = {plan.value: float(len(plan.value)) for plan in LoraPlan}
            save([PlanTimes(**shape, **kind._asdict(), base=4.0, microseconds=times) for kind in kinds])


@pytest.fixture
def fake_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune_module, "tuned_device", lambda: torch.device("cpu"))
    monkeypatch.setattr(tune_module, "PlanBench", FakeBench)


def run(*options: str):
    return CliRunner().invoke(app, ["tune", *options], env={"COLUMNS": "160"})


@pytest.mark.usefixtures("fake_device")
def test_writes_a_table_and_shows_it(tmp_path: Path) -> None:
    output = tmp_path / "plans.json"
    result = run(*TINY, "--commit", "abc", "--output", str(output))
    assert result.exit_code == 0, result.output
    content = PlanTableFile.read(output)
    assert content.device == "cpu" and content.measured_with["commit"] == "abc"
    assert {"torch", "date", "command"} < set(content.measured_with)
    assert len(content.rows) == 4 * 3
    assert len(LoraPlanTable.read(output).rows) == 4
    assert "fused +1.0" in result.output and "tiny gate+up" in result.output and "wrote 12 rows" in result.output


@pytest.mark.usefixtures("fake_device")
def test_extends_a_table(tmp_path: Path) -> None:
    output = tmp_path / "plans.json"
    run(*TINY, "--output", str(output))
    more = ("--preset", "tiny", "--tokens", "2,4", "--ranks", "16", "--adapters", "1", "--output", str(output))
    assert run(*more, "--extend").exit_code == 0
    assert len(PlanTableFile.read(output).rows) == 4 * 4, "one token, two of one adapter, two of several, four"
    assert run(*more).exit_code == 0
    assert len(PlanTableFile.read(output).rows) == 4 * 2, "anew"

    content = PlanTableFile.read(output)
    content.model_copy(update={"device": "NVIDIA X"}).write(output)
    result = run(*more, "--extend")
    assert result.exit_code == 2 and "is a table of NVIDIA X, and this is cpu" in result.output


@pytest.mark.usefixtures("fake_device")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--preset", "nothing"], "no preset 'nothing'"),
        (["--tokens", "1,x"], "--tokens '1,x'"),
        (["--ranks", ""], "--ranks ''"),
        (["--ranks", "0"], "at least 1"),
        (["--adapters", "0"], "adapters"),
        (["--processes", "0"], "processes"),
    ],
)
def test_bad_options(options: list[str], message: str, tmp_path: Path) -> None:
    result = run(*TINY, "--output", str(tmp_path / "plans.json"), *options)
    assert result.exit_code == 2 and message in result.output
    assert not (tmp_path / "plans.json").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_needs_cuda(tmp_path: Path) -> None:
    result = run(*TINY, "--output", str(tmp_path / "plans.json"))
    assert result.exit_code == 2
    assert "plans are timed on a CUDA device" in result.output and "Traceback" not in result.output


@pytest.mark.gpu
@pytest.mark.parametrize("processes", ["1", "2"])
def test_tunes_the_device(processes: str, tmp_path: Path) -> None:
    output = tmp_path / "plans.json"
    options = ("--preset", "tiny", "--tokens", "1,4,80", "--ranks", "8,32", "--adapters", "3")
    result = run(*options, "--processes", processes, "--output", str(output))
    assert result.exit_code == 0, result.output
    content = PlanTableFile.read(output)
    assert content.device == torch.cuda.get_device_name() and len(content.rows) == 4 * 2 * 5
    gate_up = next(each.shape for each in preset_projections("tiny") if each.name == "gate+up")
    for row in content.rows:
        plans = [plan for plan in LoraPlan if row.tokens < 80 or plan is not LoraPlan.FUSED]
        plans = [plan.value for plan in plans if row.shape == gate_up or plan is not LoraPlan.EXPAND_IN_CONSUMER]
        assert list(row.microseconds) == plans and "left out" not in result.output
        assert 0 < row.base < 1000 and all(0 < time < 1000 for time in row.microseconds.values())

"""`tensorrt-lora serve`: its options become a `ServeConfig`, and a user's mistake is one message."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tensorrt_lora.cli import serve as module
from tensorrt_lora.cli.main import app
from tensorrt_lora.cli.serve import parse_loras
from tensorrt_lora.serve.serve_config import ServeConfig


class FakeLLM:
    """Is given the engine's settings, and starts nothing."""

    def __init__(self, *, args: object) -> None:
        self.args = args

    def __enter__(self) -> "FakeLLM":
        return self

    def __exit__(self, *_: object) -> None: ...


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[ServeConfig]:
    seen: list[ServeConfig] = []
    monkeypatch.setattr(module, "LLM", FakeLLM)
    monkeypatch.setattr("tensorrt_lora.serve.app.create_app", lambda llm, config, metrics: config)
    monkeypatch.setattr("tensorrt_lora.serve.http_server.run_server", lambda app, config: seen.append(config))
    return seen


def test_options_override_the_file(seen: list[ServeConfig], tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("engine: {model: m, dtype: bfloat16, max_batch_size: 8}\nport: 1234\nhost: 0.0.0.0\n")
    options = ["--config", str(file), "--lora", "a=x", "--port", "99", "--dtype", "float32"]
    result = CliRunner().invoke(app, ["serve", *options], env={"TENSORRT_LORA_API_KEY": "k"})
    assert result.exit_code == 0, result.output
    [config] = seen
    assert (config.port, config.host, config.loras) == (99, "0.0.0.0", {"a": "x"})
    assert (config.engine.model, config.engine.dtype, config.engine.max_batch_size) == ("m", "float32", 8)
    assert config.engine.lora_config is not None  # on, since there is an adapter
    assert config.api_key is not None and config.api_key.get_secret_value() == "k"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "engine"),
        (["m", "--lora", "x"], "expected NAME=DIR"),
        (["m", "--enable-adapter-admin"], "needs an admin_key"),
        (["m", "--lora", "m=x"], "is the base model's name"),
        (["m", "--lora", "../m=x"], "cannot be an adapter's name"),
        (["m", "--config", "/nowhere.yaml"], "does not exist"),
    ],
)
def test_mistakes_are_one_message(seen: list[ServeConfig], options: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["serve", *options])
    assert result.exit_code == 2 and message in result.output and "Traceback" not in result.output
    assert seen == []


def test_parse_loras() -> None:
    assert parse_loras(["a=x", "b=y=z"]) == {"a": "x", "b": "y=z"}
    for options in (["x"], ["=a"], ["x="], ["x=a", "x=b"]):
        with pytest.raises(ValueError, match=f"--lora '{options[-1]}'"):
            parse_loras(options)

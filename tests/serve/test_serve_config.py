"""Settings of a server: what a file and options give, and what is refused."""

from pathlib import Path

import pytest

from tensorrt_lora.serve.serve_config import ServeConfig

ENGINE = {"model": "owner/model"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"unknown": 1}, "unknown: Extra inputs"),
        ({"port": 70_000}, "port: .*less than or equal to 65535"),
        ({"port": "8000"}, "port: .*valid integer"),
        ({"enable_adapter_admin": True}, "enable_adapter_admin needs an admin_key"),
        ({"admin_key": ""}, "admin_key is empty"),
        ({"api_key": ""}, "api_key is empty"),
        ({"loras": {"owner/model": "x"}}, "is the base model's name"),
        ({"loras": {"../x": "x"}}, "cannot be an adapter's name"),
        ({"loras": {"x": ""}}, r"loras\['x'\] is empty"),
        ({"engine": {"skip_tokenizer_init": True}}, "needs a tokenizer"),
        ({"engine": {"max_batch_size": 0}}, "engine.max_batch_size"),
        ({"max_body_bytes": 1}, "max_body_bytes"),
    ],
)
def test_refused(fields: dict[str, object], message: str) -> None:
    engine = {**ENGINE, **fields.pop("engine", {})}
    with pytest.raises(ValueError, match=message):
        ServeConfig.from_yaml(None, {"engine": engine, **fields})


def test_a_file_is_named_in_messages(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("engine: {model: m, dtype: float8}\n")
    with pytest.raises(ValueError, match=r"serve\.yaml: engine\.dtype: .*float32"):
        ServeConfig.from_yaml(file, {})


def test_options_are_merged_into_the_file(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("engine: {model: m, max_batch_size: 4}\nloras: {a: x}\nport: 1\n")
    config = ServeConfig.from_yaml(file, {"engine": {"dtype": "float32"}, "loras": {"b": "y"}, "port": 2})
    assert (config.engine.model, config.engine.max_batch_size, config.engine.dtype) == ("m", 4, "float32")
    assert (config.loras, config.port) == ({"a": "x", "b": "y"}, 2)
    assert config.engine.guided_decoding_backend == "llguidance"


def test_lora_is_on_where_adapters_are_asked_for(tmp_path: Path) -> None:
    assert ServeConfig.from_yaml(None, {"engine": ENGINE}).engine.lora_config is None
    for fields in (
        {"loras": {"a": "x"}},
        {"lora_root": str(tmp_path)},
        {"enable_adapter_admin": True, "admin_key": "k"},
    ):
        assert ServeConfig.from_yaml(None, {"engine": ENGINE, **fields}).engine.lora_config is not None
    off = {"engine": {**ENGINE, "guided_decoding_backend": None}}
    assert ServeConfig.from_yaml(None, off).engine.guided_decoding_backend is None


def test_names_of_the_base_model(tmp_path: Path) -> None:
    def names(model: str, **fields: object) -> tuple[str, ...]:
        return ServeConfig.from_yaml(None, {"engine": {"model": model}, **fields}).base_names

    assert names("owner/model") == ("owner/model",)
    assert names(str(tmp_path)) == (tmp_path.name, str(tmp_path))
    assert names(str(tmp_path), served_model_name="mine") == ("mine",)


def test_keys_are_not_shown() -> None:
    config = ServeConfig.from_yaml(None, {"engine": ENGINE, "api_key": "hidden-1", "admin_key": "hidden-2"})
    assert "hidden" not in repr(config)

"""Everything a user can set on a server.

Owns `ServeConfig`: the engine's settings, and those of the HTTP side around it. Built by `cli/serve.py` from a YAML
file and options; read by the rest of `serve/`, which passes single values down.
"""

from os import PathLike
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator

from tensorrt_lora.config.llm_args import TorchLlmArgs
from tensorrt_lora.config.strict_base_model import StrictBaseModel
from tensorrt_lora.config.validation_message import describe_validation_error
from tensorrt_lora.config.yaml_mapping import read_yaml_mapping
from tensorrt_lora.serve.adapter_name import check_adapter_name


class ServeConfig(StrictBaseModel):
    """Settings of one server. Raises ValueError (pydantic's) for wrong or contradicting values."""

    engine: TorchLlmArgs = Field(description="The engine behind the server.")
    host: str = Field(default="127.0.0.1", min_length=1, description="Address to listen on; 0.0.0.0 for all.")
    port: int = Field(default=8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    served_model_name: str | None = Field(
        default=None,
        min_length=1,
        description="What clients call the base model; None takes the hub id, or the last part of a path.",
    )
    loras: dict[str, str] = Field(
        default_factory=dict,
        description="Adapters by name that are loaded, and warm, before the server is ready; each a directory or "
        "hub id, inside lora_root or not.",
    )
    lora_root: str | None = Field(
        default=None,
        min_length=1,
        description="The one directory that requests may load adapters from: its direct children by name as `model`, "
        "paths inside it by load_lora_adapter and lora_request. None: adapters come from `loras` alone.",
    )
    enable_adapter_admin: bool = Field(
        default=False, description="Serve /v1/load_lora_adapter and /v1/unload_lora_adapter; needs admin_key."
    )
    api_key: SecretStr | None = Field(
        default=None, description="What clients must send as bearer token to /v1; None lets everybody in."
    )
    admin_key: SecretStr | None = Field(
        default=None, description="Bearer token of the admin routes; good for all others too."
    )
    max_body_bytes: int = Field(default=4 * 2**20, ge=1024, description="Largest request body, in bytes (else 413).")
    max_concurrent_sequences: int = Field(
        default=256,
        ge=1,
        description="Sequences (prompts times n) that run or wait at once, over all clients (else 429).",
    )
    max_prompts: int = Field(default=64, ge=1, description="Prompts in one completions request (else 422).")
    max_output_tokens: int | None = Field(
        default=None, ge=1, description="Largest max_tokens of a request (else 422); None leaves it to max_seq_len."
    )
    request_timeout_s: float = Field(
        default=600.0, gt=0.0, description="Seconds from a request's arrival to its last token (else 504)."
    )
    body_timeout_s: float = Field(default=30.0, gt=0.0, description="Seconds to receive a request's body (else 408).")
    drain_timeout_s: float = Field(
        default=120.0, ge=0.0, description="Seconds that running requests get to finish after SIGTERM."
    )
    max_metric_adapters: int = Field(
        default=32,
        ge=0,
        le=1000,
        description="Adapters that metrics tell by name: those of `loras` first, then others as they are used; the "
        "rest count as _other.",
    )
    keep_alive_timeout_s: int = Field(default=30, ge=1, description="Seconds that an idle connection stays open.")
    log_level: Literal["critical", "error", "warning", "info", "debug"] = Field(
        default="info", description="Of the server's own log."
    )
    access_log: bool = Field(default=False, description="Log a line for each request; costs throughput.")

    @field_validator("loras")
    @classmethod
    def _check_loras(cls, loras: dict[str, str]) -> dict[str, str]:
        for name, path in loras.items():
            check_adapter_name(name)
            if not path:
                raise ValueError(f"loras[{name!r}] is empty: give the adapter's directory or hub id")
        return loras

    @model_validator(mode="after")
    def _check_together(self) -> "ServeConfig":
        if self.enable_adapter_admin and self.admin_key is None:
            raise ValueError("enable_adapter_admin needs an admin_key: whoever loads adapters must be known")
        if self.admin_key is not None and not self.admin_key.get_secret_value():
            raise ValueError("admin_key is empty: give a key, or leave it out")
        if self.api_key is not None and not self.api_key.get_secret_value():
            raise ValueError("api_key is empty: give a key, or leave it out")
        if clash := sorted(set(self.loras).intersection(self.base_names)):
            raise ValueError(f"loras holds {clash[0]!r}, which is the base model's name: choose another")
        if self.uses_adapters and self.engine.lora_config is None:
            raise ValueError("adapters are asked for while engine.lora_config is None: set it, such as to {}")
        if self.engine.skip_tokenizer_init:
            raise ValueError("the server needs a tokenizer: leave out engine.skip_tokenizer_init")
        return self

    @property
    def uses_adapters(self) -> bool:
        return bool(self.loras) or self.lora_root is not None or self.enable_adapter_admin

    @property
    def base_names(self) -> tuple[str, ...]:
        """What clients may call the base model; the first is the one that is shown."""
        if self.served_model_name is not None:
            return (self.served_model_name,)
        model = self.engine.model
        path = Path(model).expanduser()
        shown = path.resolve().name if path.exists() else model
        return (shown,) if shown in ("", model) else (shown, model)

    @classmethod
    def from_yaml(cls, path: str | PathLike[str] | None, overrides: dict[str, object]) -> "ServeConfig":
        """Read settings from a YAML mapping of field names (None: no file); `overrides` replace its values.

        Nested mappings, the engine's above all, are merged rather than replaced. LoRA is switched on where adapters
        are asked for, and guided decoding unless it is set to null. Raises ValueError that names the file, and the
        dotted field of every wrong value.
        """
        settings = {} if path is None else read_yaml_mapping(path, of="ServeConfig")
        settings = _merge(settings, overrides)
        engine = settings.get("engine", {})
        if isinstance(engine, dict):
            wants = any(settings.get(name) for name in ("loras", "lora_root", "enable_adapter_admin"))
            engine = {"guided_decoding_backend": "llguidance", **engine}
            if wants and engine.get("lora_config") is None:
                engine["lora_config"] = {}
            settings["engine"] = engine
        try:
            return cls.model_validate(settings)
        except ValidationError as error:
            where = "" if path is None else f"{Path(path)}: "
            raise ValueError(f"{where}{describe_validation_error(error)}") from error


def _merge(below: dict[str, object], above: dict[str, object]) -> dict[str, object]:
    merged = dict(below)
    for name, value in above.items():
        old = merged.get(name)
        merged[name] = _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged

"""`tensorrt-lora serve`: an OpenAI-compatible server for one base model and its adapters.

Owns the options; `tensorrt_lora/serve/` serves. What it needs is imported when it runs: the other sub-commands work
without the `serve` extra.
"""

import importlib.util
import logging
from pathlib import Path
from typing import Annotated, Literal

import typer

from tensorrt_lora.llmapi.llm import LLM


def serve(
    model: Annotated[
        str | None, typer.Argument(help="Checkpoint directory, .gguf file or hub id; may come from --config.")
    ] = None,
    lora: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=DIR", help="An adapter to load at start. Repeatable."),
    ] = None,
    lora_root: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The one directory that requests may load adapters from.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="YAML file of ServeConfig fields; options override it."),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.  [default: 127.0.0.1]")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.  [default: 8000]")] = None,
    served_model_name: Annotated[str | None, typer.Option(help="What clients call the base model.")] = None,
    enable_adapter_admin: Annotated[
        bool | None,
        typer.Option("--enable-adapter-admin", help="Serve the routes that load and unload adapters."),
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="TENSORRT_LORA_API_KEY", help="What clients must send as bearer token.")
    ] = None,
    admin_key: Annotated[
        str | None, typer.Option(envvar="TENSORRT_LORA_ADMIN_KEY", help="Bearer token of the admin routes.")
    ] = None,
    dtype: Annotated[Literal["auto", "float32", "bfloat16"] | None, typer.Option()] = None,
    device: Annotated[Literal["auto", "cpu", "cuda"] | None, typer.Option()] = None,
) -> None:
    """Serve a model and its adapters through OpenAI's API, until SIGTERM."""
    missing = [name for name in ("fastapi", "prometheus_client", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(f"the server needs {' and '.join(missing)}: pip install 'tensorrt_lora[serve]'")
    from tensorrt_lora.serve.app import create_app
    from tensorrt_lora.serve.http_server import run_server
    from tensorrt_lora.serve.serve_config import ServeConfig
    from tensorrt_lora.serve.server_metrics import ServerMetrics

    engine = {"model": model, "dtype": dtype, "device": device}
    options = {
        "engine": {name: value for name, value in engine.items() if value is not None},
        "loras": parse_loras(lora or []),
        "lora_root": None if lora_root is None else str(lora_root),
        "host": host,
        "port": port,
        "served_model_name": served_model_name,
        "enable_adapter_admin": enable_adapter_admin,
        "api_key": api_key,
        "admin_key": admin_key,
    }
    settings = ServeConfig.from_yaml(config, {name: value for name, value in options.items() if value is not None})
    logging.basicConfig(level=settings.log_level.upper(), format="%(levelname)s: %(message)s")
    with LLM(args=settings.engine) as llm:
        run_server(create_app(llm, settings, metrics=ServerMetrics(settings)), settings)


def parse_loras(options: list[str]) -> dict[str, str]:
    """Directories by name. Raises ValueError for what is not NAME=DIR, and for a name given twice."""
    loras: dict[str, str] = {}
    for option in options:
        name, equals, directory = option.partition("=")
        if not (name and equals and directory):
            raise ValueError(f"--lora {option!r}: expected NAME=DIR, such as --lora pirate=adapters/pirate")
        if name in loras:
            raise ValueError(f"--lora {option!r}: the name {name!r} is taken, choose another")
        loras[name] = directory
    return loras

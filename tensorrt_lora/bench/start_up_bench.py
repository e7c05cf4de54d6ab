"""`bench startup`: how long an engine with default settings takes to be ready, and what its graphs take.

Dummy weights are drawn on the device, so that the time of reading a disk is left out. Called by `cli/startup.py`.
"""

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tensorrt_lora.config.llm_args import TorchLlmArgs
from tensorrt_lora.config.lora_config import LoraConfig
from tensorrt_lora.config.model_presets import find_preset
from tensorrt_lora.config.peft_cache_config import PeftCacheConfig
from tensorrt_lora.engine.model_engine import PyTorchModelEngine
from tensorrt_lora.engine.model_loader import load_model


@dataclass(frozen=True, slots=True)
class StartUp:
    """One start. Times in seconds, memory in bytes."""

    preset: str
    load_seconds: float  # weights, adapter slots and KV cache
    engine_seconds: float  # what follows, until the engine takes requests
    num_graphs: int
    graph_bytes: int
    slot_bytes: int


def measure_start_up(
    preset: str, *, lora_rank: int, max_loras: int, device: Literal["auto", "cpu", "cuda"], progress: bool
) -> StartUp:
    """Start an engine with default batch sizes, and measure it. Raises ValueError for an unknown preset."""
    with tempfile.TemporaryDirectory() as directory:
        args = TorchLlmArgs(
            model=str(find_preset(preset).write(Path(directory) / preset)),
            skip_tokenizer_init=True,
            load_format="dummy",
            device=device,
            peft_cache_config=PeftCacheConfig(device_cache_percent=0.5),
            lora_config=LoraConfig(max_lora_rank=lora_rank, max_loras=max_loras, overlap_lora_and_base=True),
        )
        start = time.perf_counter()
        loaded = load_model(args, progress=progress)
        loaded_at = time.perf_counter()
        engine = PyTorchModelEngine(args, loaded, progress=progress)
    graphs = engine.graph_runner.graph_memory
    assert loaded.lora_manager is not None
    return StartUp(
        preset=preset,
        load_seconds=loaded_at - start,
        engine_seconds=time.perf_counter() - loaded_at,
        num_graphs=len(graphs),
        graph_bytes=sum(graphs.values()),
        slot_bytes=loaded.lora_manager.nbytes,
    )

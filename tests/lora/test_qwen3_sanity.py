"""Qwen3 sanity checks on the CPU path, with every setting of the overlap and specialisation flags."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from peft import LoraConfig as PeftLoraConfig

from tensorrt_lora import LLM, LoraConfig, LoRARequest
from tests.support.qwen3_sanity import Qwen3LoRASanity
from tests.support.tiny_adapters import save_peft_adapter
from tests.support.tiny_models import make_tiny_model, save_tiny_model


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("qwen3")
    save_tiny_model(directory / "model", "qwen3_untied")
    for seed, rank in ((1, 8), (2, 3)):
        config = PeftLoraConfig(task_type="CAUSAL_LM", r=rank, lora_alpha=16, target_modules="all-linear")
        save_peft_adapter(directory / f"adapter{seed}", make_tiny_model("qwen3_untied"), config, seed=seed)
    return directory


@pytest.fixture(scope="module", params=[(o, s) for o in (False, True) for s in (False, True)])
def llm(request: pytest.FixtureRequest, directory: Path) -> Iterator[LLM]:
    overlap, specialize = request.param
    lora_config = LoraConfig(
        max_lora_rank=8, max_loras=2, overlap_lora_and_base=overlap, cuda_graph_specialize_lora=specialize
    )
    with LLM(
        model=directory / "model",
        executor="inline",
        device="cpu",
        max_batch_size=8,
        max_seq_len=64,
        kv_cache_config={"enable_block_reuse": False},
        lora_config=lora_config,
    ) as llm:
        yield llm


@pytest.fixture(scope="module")
def adapters(directory: Path) -> list[LoRARequest]:
    return [LoRARequest(f"adapter{number}", number, str(directory / f"adapter{number}")) for number in (1, 2)]


class TestQwen3LoRA(Qwen3LoRASanity):
    tolerance = 1e-5

"""Two hundred adapter swaps in a running engine: the same answers, and no growth of device memory."""

import random
from pathlib import Path

import pytest
import torch

from tensorrt_lora import LoraConfig, TorchLlmArgs
from tests.support.forced_decoding import ForcedDecoding
from tests.support.random_adapters import random_adapter
from tests.support.tiny_models import save_tiny_model

pytestmark = pytest.mark.gpu

SWAPS, SLOTS, ADAPTERS = 200, 2, 9
SHAPE: dict[str, object] = {"head_dim": 128, "hidden_size": 512, "intermediate_size": 1024}


def test_swaps_neither_grow_memory_nor_change_answers(tmp_path: Path):
    model_dir = save_tiny_model(tmp_path, "qwen3", dtype=torch.bfloat16, overrides=SHAPE)
    driver = ForcedDecoding(
        TorchLlmArgs(
            model=model_dir,
            dtype="bfloat16",
            device="cuda",
            max_batch_size=4,
            cuda_graph_config={"batch_sizes": [4]},
            max_seq_len=512,
            lora_config=LoraConfig(max_loras=SLOTS, max_lora_rank=64, overlap_lora_and_base=True),
        )
    )
    manager = driver.loaded.lora_manager
    assert manager is not None
    adapters = [random_adapter(manager.sites, number, rank=1 + 7 * number) for number in range(ADAPTERS)]
    rng = random.Random(0)
    answers: dict[int, torch.Tensor] = {}
    memory = []
    for swap in range(SWAPS):
        number = swap % ADAPTERS if swap < ADAPTERS else rng.randrange(ADAPTERS)
        driver.restart()
        driver.prefill([[1, 2, 3]] * 4, [adapters[number], None, adapters[number], None])
        logits = driver.decode([5, 6, 7, 8])
        assert torch.equal(answers.setdefault(number, logits), logits), f"adapter {number} changed after {swap} swaps"
        torch.cuda.synchronize()
        memory.append((torch.cuda.memory_allocated(), torch.cuda.memory_reserved()))
    assert len(answers) == ADAPTERS
    assert memory[-1] == memory[2 * ADAPTERS]

"""The engine in a process of its own on the GPU answers as the one inside this process."""

from pathlib import Path

import pytest
import torch
from peft import LoraConfig as PeftLoraConfig

from tensorrt_lora import LLM, LoraConfig, LoRARequest, SamplingParams
from tests.support.tiny_adapters import save_peft_adapter
from tests.support.tiny_models import make_tiny_model, save_tiny_model

pytestmark = pytest.mark.gpu

SHAPE: dict[str, object] = {"head_dim": 128, "hidden_size": 512, "intermediate_size": 1024}


def test_both_executors_give_the_same_tokens(tmp_path: Path):
    model_dir = save_tiny_model(tmp_path / "model", "qwen3", dtype=torch.bfloat16, overrides=SHAPE)
    config = PeftLoraConfig(task_type="CAUSAL_LM", r=8, lora_alpha=16, target_modules="all-linear")
    save_peft_adapter(tmp_path / "adapter", make_tiny_model("qwen3", overrides=SHAPE), config, seed=1)
    adapter = LoRARequest("adapter", 1, str(tmp_path / "adapter"))
    prompts = [[1, 2, 3, 4], [5, 6, 7], [1, 2, 3, 4], [8, 9]]
    rows = [None, adapter, adapter, None]
    params = SamplingParams(max_tokens=40, ignore_eos=True, temperature=0.8, seed=3)
    answers = []
    for executor in ("inline", "process"):
        with LLM(
            model=model_dir,
            executor=executor,
            device="cuda",
            max_batch_size=4,
            max_seq_len=128,
            kv_cache_config={"enable_block_reuse": False},
            lora_config=LoraConfig(max_loras=2, max_lora_rank=8, overlap_lora_and_base=True),
        ) as llm:
            # One by one: what runs beside a request changes its last bits, and its neighbours depend on timing.
            outputs = [llm.generate(prompt, params, row) for prompt, row in zip(prompts, rows, strict=True)]
        answers.append([output.outputs[0].token_ids for output in outputs])
    assert answers[0] == answers[1]

"""Adapters on FP8 bases through the whole engine, against PEFT on the dequantised model.

Rounding activations moves log-probabilities by about 0.2 on these models (see tests/models/test_fp8_models.py).
"""

import random
from pathlib import Path

import pytest
import torch
from peft import LoraConfig as PeftLoraConfig
from peft import PeftModel
from transformers import PreTrainedModel

from tensorrt_lora import LLM, LoraConfig, LoRARequest, QuantConfig, SamplingParams
from tests.support.fp8_checkpoints import SHAPE, named_projections, round_weights_by_tensor, save_fp8_checkpoint
from tests.support.tiny_adapters import save_peft_adapter
from tests.support.tiny_models import make_tiny_model, save_tiny_model

BOUND = 0.33
SAMPLING = SamplingParams(max_tokens=1, prompt_logprobs=0)
ADAPTERS: dict[str, dict[str, object]] = {
    "all": {"r": 5, "lora_alpha": 8, "target_modules": "all-linear"},
    "attention": {"r": 17, "lora_alpha": 17, "target_modules": ["q_proj", "v_proj", "o_proj"]},
    "dora": {"r": 4, "lora_alpha": 4, "target_modules": ["v_proj", "down_proj"], "use_dora": True},
}


@pytest.fixture
def adapters(tmp_path: Path) -> dict[str, LoRARequest]:
    requests = {}
    for number, (name, fields) in enumerate(ADAPTERS.items()):
        path = tmp_path / f"adapter-{name}"
        config = PeftLoraConfig(task_type="CAUSAL_LM", **fields)
        save_peft_adapter(path, make_tiny_model("llama", overrides=SHAPE), config, seed=number, strength=0.6)
        requests[name] = LoRARequest(name, number, str(path))
    return requests


@torch.inference_mode()
def expected_logprobs(model: torch.nn.Module, prompt: list[int]) -> torch.Tensor:
    logits = model(torch.tensor([prompt])).logits[0, :-1].log_softmax(-1)
    return logits.gather(1, torch.tensor(prompt[1:])[:, None])[:, 0]


def engine_logprobs(
    model_dir: Path, prompts: list[list[int]], requests: list[LoRARequest | None], quant_config: QuantConfig | None
) -> list[torch.Tensor]:
    """Of each prompt's tokens from the second on; all prompts in one batch."""
    lora_config = LoraConfig(max_loras=3, max_lora_rank=32)
    settings: dict[str, object] = {"max_batch_size": 4, "max_num_tokens": 256, "max_seq_len": 256}
    with LLM(
        model=model_dir,
        executor="inline",
        device="cpu",
        dtype="float32",
        lora_config=lora_config,
        quant_config=quant_config,
        skip_tokenizer_init=True,
        **settings,
    ) as llm:
        outputs = llm.generate(prompts, SAMPLING, lora_request=requests)
    rows = []
    for output, prompt in zip(outputs, prompts, strict=True):
        entries = zip(output.prompt_logprobs[1:], prompt[1:], strict=True)
        rows.append(torch.tensor([entry[token].logprob for entry, token in entries]))
    return rows


def check(
    model_dir: Path, base: PreTrainedModel, adapters: dict[str, LoRARequest], quant_config: QuantConfig | None = None
) -> None:
    rng = random.Random(0)
    prompts = [[rng.randrange(256) for _ in range(60)] for _ in range(1 + len(adapters))]
    ours = engine_logprobs(model_dir, prompts, [None, *adapters.values()], quant_config)
    base_only = [expected_logprobs(base, prompt) for prompt in prompts]
    assert (ours[0] - base_only[0]).abs().mean() < BOUND
    for name, row, prompt, without in zip(adapters, ours[1:], prompts[1:], base_only[1:], strict=True):
        model = PeftModel.from_pretrained(base, adapters[name].lora_path).eval()
        expected = expected_logprobs(model, prompt)
        model.unload()
        assert (expected - without).abs().mean() > 3 * BOUND, f"{name} changes too little to be missed"
        assert (row - expected).abs().mean() < BOUND, name


@pytest.mark.parametrize("layout", ["compressed-tensors dynamic", "modelopt file", "qwen3 blocks"])
def test_adapters_on_a_published_checkpoint(layout: str, adapters: dict[str, LoRARequest], tmp_path: Path) -> None:
    base = save_fp8_checkpoint(tmp_path / "model", layout)
    for _, module in named_projections(base):
        module._forward_pre_hooks.clear()
    check(tmp_path / "model", base, adapters)


def test_adapters_on_a_model_quantised_as_it_is_loaded(adapters: dict[str, LoRARequest], tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "model", "llama", overrides=SHAPE, tokenizer=False)
    base = round_weights_by_tensor(make_tiny_model("llama", overrides=SHAPE))
    check(tmp_path / "model", base, adapters, QuantConfig(quant_algo="FP8_PER_TENSOR"))

"""Adapters written by real trainers, old and new: the engine answers what the trainer's own model answers."""

import json
from pathlib import Path

import pytest
import torch
from peft import LoraConfig as PeftLoraConfig
from peft import PeftModel, __version__
from transformers import PreTrainedModel

from tensorrt_lora import LLM, LoraConfig, LoRARequest, SamplingParams
from tests.data.trainers.make_adapters import PROMPT, base_model, token_logprobs
from tests.support.tiny_adapters import save_peft_adapter
from tests.support.tiny_models import make_tiny_model

SHIPPED = Path(__file__).parents[1] / "data" / "trainers"
TRAINERS = ("peft-0.11-bin", "peft-0.11-dora", "peft-0.11-embedding", "torchtune-0.6", "transformers-4.44", "trl-1.16")
TARGETS = ["attn_qkv", "attn_dense", "mlp_gate_up", "mlp_4h_to_h", "embed_tokens", "lm_head"]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory):
    lora_config = LoraConfig(max_lora_rank=16, lora_target_modules=TARGETS)
    model_dir = base_model(tmp_path_factory.mktemp("base"))
    with LLM(model=model_dir, executor="inline", device="cpu", max_seq_len=64, lora_config=lora_config) as llm:
        yield llm


def prompt_logprobs(llm: LLM, adapter: LoRARequest | None) -> torch.Tensor:
    """log p of every prompt token but the first."""
    output = llm.generate(PROMPT, SamplingParams(max_tokens=1, prompt_logprobs=0), adapter)
    assert output.prompt_logprobs is not None
    entries = zip(output.prompt_logprobs[1:], PROMPT[1:], strict=True)
    return torch.tensor([entry[token].logprob for entry, token in entries])


def base() -> PreTrainedModel:
    return make_tiny_model("llama", overrides={"hidden_size": 64, "num_attention_heads": 4})


@pytest.mark.parametrize("number", range(len(TRAINERS)), ids=TRAINERS)
def test_a_shipped_adapter_answers_as_its_trainer_did(llm: LLM, number: int):
    directory = SHIPPED / TRAINERS[number]
    expected = json.loads((directory / "expected.json").read_text())
    assert expected["prompt"] == PROMPT
    untrained, trained = torch.tensor(expected["base"]), torch.tensor(expected["adapted"])
    torch.testing.assert_close(prompt_logprobs(llm, None), untrained, atol=1e-3, rtol=0.0)
    adapted = prompt_logprobs(llm, LoRARequest(directory.name, number, str(directory)))
    torch.testing.assert_close(adapted, trained, atol=1e-3, rtol=0.0)
    assert (trained - untrained).abs().max() > 0.5
    assert llm.check_lora(LoRARequest(directory.name, number, str(directory))).ok


def test_an_adapter_of_the_installed_peft(llm: LLM, tmp_path: Path):
    config = PeftLoraConfig(task_type="CAUSAL_LM", r=5, target_modules="all-linear", use_rslora=True)
    save_peft_adapter(tmp_path, base(), config, strength=0.7)
    assert json.loads((tmp_path / "adapter_config.json").read_text())["peft_version"] == __version__
    expected = token_logprobs(lambda ids: PeftModel.from_pretrained(base(), tmp_path).eval()(ids).logits)
    ours = prompt_logprobs(llm, LoRARequest("current", 100, str(tmp_path)))
    torch.testing.assert_close(ours, torch.tensor(expected), atol=1e-4, rtol=0.0)

"""Combinations of adapters in captured bfloat16 steps: their own tokens' log-probabilities within 0.1 of fp32 PEFT."""

from pathlib import Path

import pytest
import torch
from peft import LoraConfig as PeftLoraConfig
from peft import PeftModel
from transformers import AutoModelForCausalLM

from tensorrt_lora import LLM, LoraConfig, LoRARequest, SamplingParams
from tests.support.tiny_adapters import save_peft_adapter
from tests.support.tiny_models import make_tiny_model, save_tiny_model

pytestmark = pytest.mark.gpu

SHAPE: dict[str, object] = {"head_dim": 128, "hidden_size": 512, "intermediate_size": 1024}
FIELDS: dict[str, dict[str, object]] = {
    "a": {"r": 8, "lora_alpha": 12, "target_modules": ["q_proj", "v_proj", "down_proj"]},
    "b": {"r": 17, "lora_alpha": 17, "target_modules": ["v_proj", "up_proj", "o_proj"]},
}
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def test_a_combination_beside_its_parts_and_base_rows(tmp_path: Path):
    model_dir = save_tiny_model(
        tmp_path / "model", "qwen3_untied", dtype=torch.bfloat16, overrides=SHAPE, logit_std=1.0
    )
    requests = {}
    for number, (name, fields) in enumerate(FIELDS.items()):
        config = PeftLoraConfig(task_type="CAUSAL_LM", **fields)
        source = make_tiny_model("qwen3_untied", overrides=SHAPE)
        save_peft_adapter(tmp_path / name, source, config, seed=number, strength=0.3)
        requests[name] = LoRARequest(name, number, str(tmp_path / name))
    base = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    reference = PeftModel.from_pretrained(base, tmp_path / "a", adapter_name="a").eval()
    reference.load_adapter(tmp_path / "b", adapter_name="b")
    reference.add_weighted_adapter(["a", "b"], [0.7, -0.5], adapter_name="mix", combination_type="cat")
    rows = {"a": requests["a"], "b": requests["b"], "mix": [(requests["a"], 0.7), (requests["b"], -0.5)], None: None}

    with LLM(
        model=model_dir,
        executor="inline",
        device="cuda",
        max_batch_size=4,
        max_seq_len=128,
        lora_config=LoraConfig(max_loras=3, max_lora_rank=32, overlap_lora_and_base=True),
    ) as llm:
        params = SamplingParams(max_tokens=64, ignore_eos=True, logprobs=0)
        outputs = llm.generate([PROMPT] * len(rows), params, list(rows.values()))

    for name, output in zip(rows, outputs, strict=True):
        assert output.error is None
        completion = output.outputs[0]
        tokens = completion.token_ids
        ours = [entry[token].logprob for entry, token in zip(completion.logprobs, tokens, strict=True)]
        with torch.inference_mode():
            ids = torch.tensor([PROMPT + tokens[:-1]])
            if name is None:
                with reference.disable_adapter():
                    logits = reference(ids).logits
            else:
                reference.set_adapter(name)
                logits = reference(ids).logits
        expected = logits[0, len(PROMPT) - 1 :].log_softmax(-1).gather(1, torch.tensor(tokens)[:, None])[:, 0]
        assert (torch.tensor(ours) - expected).abs().max() < 0.1, name

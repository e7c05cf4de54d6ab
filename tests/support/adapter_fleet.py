"""Five adapters that differ in everything an adapter can differ in, and what PEFT says a request should answer."""

from dataclasses import dataclass
from pathlib import Path

import torch
from peft import LoraConfig as PeftLoraConfig
from peft import PeftModel

from tensorrt_lora.lora_request import LoRARequest
from tests.support.tiny_adapters import save_peft_adapter
from tests.support.tiny_models import make_tiny_model, save_tiny_model

# Module names that every served family has.
_FLEET: dict[str, dict[str, object]] = {
    "rank1": {"r": 1, "lora_alpha": 2, "target_modules": ["q_proj", "v_proj"]},
    "rank3_rslora": {"r": 3, "lora_alpha": 4, "use_rslora": True, "target_modules": "all-linear"},
    "rank8_patterns": {
        "r": 8,
        "lora_alpha": 16,
        "target_modules": ["k_proj", "o_proj", "up_proj"],
        "rank_pattern": {"layers.0.self_attn.o_proj": 5, "up_proj": 2},
        "alpha_pattern": {"layers.1.self_attn.k_proj": 3},
    },
    "rank17_mlp": {"r": 17, "lora_alpha": 17, "target_modules": r".*\.mlp\.(up|down)_proj"},
    "rank64_layer1": {
        "r": 64,
        "lora_alpha": 32,
        "target_modules": ["q_proj", "o_proj", "down_proj"],
        "layers_to_transform": [1],
    },
}


@dataclass
class Oracle:
    """A tiny model, its fleet of adapters on disk, and transformers + PEFT to say what is right."""

    model_dir: Path
    requests: dict[str, LoRARequest]
    _models: dict[str | None, torch.nn.Module]

    @classmethod
    def create(cls, directory: Path, family: str) -> "Oracle":
        model_dir = save_tiny_model(directory / family, family)
        requests = {}
        models: dict[str | None, torch.nn.Module] = {None: make_tiny_model(family)}
        for number, (name, fields) in enumerate(_FLEET.items()):
            path = directory / f"{family}-{name}"
            config = PeftLoraConfig(task_type="CAUSAL_LM", **fields)
            save_peft_adapter(path, make_tiny_model(family), config, seed=number, strength=0.7)
            requests[name] = LoRARequest(name, number, str(path))
            models[name] = PeftModel.from_pretrained(make_tiny_model(family), path).eval()
        return cls(model_dir, requests, models)

    @torch.inference_mode()
    def logprobs(self, adapter: str | None, token_ids: list[int]) -> torch.Tensor:
        """[len(token_ids), vocab]: log-probabilities after each token, by the base model or one adapter on it."""
        return self._models[adapter](torch.tensor([token_ids])).logits[0].log_softmax(-1)

    def check_greedy(self, adapter: str | None, prompt: list[int], output: list[int], logprobs: list[float]) -> None:
        """Assert that `output` is what greedy decoding gives, with these log-probabilities (1e-4).

        By induction over positions: each token is the best one after the prompt and the tokens before it.
        """
        expected = self.logprobs(adapter, prompt + output)[len(prompt) - 1 : -1]
        assert expected.argmax(-1).tolist() == output, f"adapter {adapter}: not the greedy tokens"
        own = expected.gather(1, torch.tensor(output)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(logprobs), own, atol=1e-4, rtol=0.0)

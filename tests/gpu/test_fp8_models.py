"""FP8 models on a GPU: near their dequantised reference, and the same bits captured or eager, overlapped or not."""

import random
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tensorrt_lora import LoraConfig, QuantConfig, TorchLlmArgs
from tensorrt_lora.config.model_config import ModelConfig
from tensorrt_lora.config.quant_config import QuantAlgo
from tensorrt_lora.models.auto_model import create_model
from tensorrt_lora.models.checkpoint_loader import load_weights
from tensorrt_lora.models.dequantized_parameters import DequantizedParameters
from tests.support.forced_decoding import ForcedDecoding
from tests.support.fp8_checkpoints import LAYOUTS, named_projections, save_fp8_checkpoint
from tests.support.paged_forward import PagedForward
from tests.support.random_adapters import random_adapter
from tests.support.tiny_models import save_tiny_model

pytestmark = pytest.mark.gpu

LOGPROB_BOUND = 0.33  # see tests/models/test_fp8_models.py
BATCH = 8
SHAPE: dict[str, object] = {
    "head_dim": 128,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "max_position_embeddings": 2048,
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_logprobs_are_near_those_of_the_dequantised_model(layout: str, tmp_path: Path, device: torch.device) -> None:
    reference = save_fp8_checkpoint(tmp_path, layout)
    config = ModelConfig.from_pretrained(str(tmp_path))
    model = create_model(config, dtype=torch.bfloat16, device=device, attn_backend="VANILLA")
    load_weights(model, config)
    weights = DequantizedParameters(model)
    for name, parameter in reference.named_parameters():
        assert torch.equal(weights[name].cpu(), parameter.bfloat16()), name

    tokens = torch.randint(0, 256, (48,)).tolist()
    for _, module in named_projections(reference):
        module._forward_pre_hooks.clear()
    with torch.inference_mode():
        expected = reference(torch.tensor([tokens])).logits[0].log_softmax(-1)
    forward = PagedForward(model)
    parts = [forward.step({"a": tokens[:40]})["a"]]  # as one prompt, then token by token
    parts += [forward.step(generations={"a": token})["a"] for token in tokens[40:]]
    difference = (torch.cat(parts).cpu().log_softmax(-1) - expected).abs()
    assert 0.05 < difference[:40].mean() < LOGPROB_BOUND
    assert difference[40:].mean() < LOGPROB_BOUND


def run(model_dir: Path, algo: QuantAlgo, *, graphs: bool, overlap: bool) -> Tensor:
    """Logits [steps, batch, vocab] of a prefill and 64 decode steps in which adapters come and go."""
    args = TorchLlmArgs(
        model=model_dir,
        dtype="bfloat16",
        device="cuda",
        max_batch_size=BATCH,
        max_num_tokens=2048,
        cuda_graph_config={"batch_sizes": [BATCH], "prefill_token_buckets": []} if graphs else None,
        kv_cache_config={"max_tokens": BATCH * 2048},
        lora_config=LoraConfig(max_loras=4, max_lora_rank=32, overlap_lora_and_base=overlap),
        quant_config=QuantConfig(quant_algo=algo),
    )
    driver = ForcedDecoding(args)
    assert driver.loaded.lora_manager is not None
    adapters = [random_adapter(driver.loaded.lora_manager.sites, number, rank=8 + 5 * number) for number in range(4)]
    rng = random.Random(0)
    prompts = [[rng.randrange(256) for _ in range(5 + 7 * row)] for row in range(BATCH)]
    logits = [driver.prefill(prompts, [None] * BATCH)]
    for _ in range(64):
        tokens = [rng.randrange(256) for _ in range(BATCH)]
        logits.append(driver.decode(tokens, [rng.choice([None, *adapters]) for _ in range(BATCH)]))
    return torch.stack(logits)


@pytest.mark.parametrize("algo", ["FP8_PER_TENSOR", "FP8_BLOCK_SCALES"])
def test_graphs_and_overlap_change_no_bit(algo: QuantAlgo, tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "qwen3_untied", dtype=torch.bfloat16, overrides=SHAPE, logit_std=1.0, tokenizer=False)
    expected = run(tmp_path, algo, graphs=False, overlap=False)
    assert expected.isfinite().all()
    for graphs, overlap in ((True, False), (True, True)):
        actual = run(tmp_path, algo, graphs=graphs, overlap=overlap)
        assert torch.equal(actual, expected), f"graphs={graphs}, overlap={overlap}"

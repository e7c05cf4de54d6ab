"""Qwen3 sanity checks in bfloat16 with captured graphs, on dummy models of real shapes, for all flag settings."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from tensorrt_lora import LLM, LoraConfig, LoRARequest
from tests.support.qwen3_sanity import Qwen3LoRASanity
from tests.support.tiny_adapters import config_fields, find_sites, random_tensors, write_adapter

pytestmark = pytest.mark.gpu

LEAVES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
SHAPES: dict[str, dict[str, object]] = {
    "0.6B": {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "tie_word_embeddings": True,
    },
    "8B": {
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "tie_word_embeddings": False,
    },
}


@pytest.fixture(scope="module", params=SHAPES)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A config without weights, and two adapters whose scale makes their effect about that of a trained one."""
    directory = tmp_path_factory.mktemp("model")
    config = Qwen3Config(vocab_size=151936, head_dim=128, max_position_embeddings=40960, **SHAPES[request.param])
    config.architectures = ["Qwen3ForCausalLM"]
    config.save_pretrained(directory / "model")
    with torch.device("meta"):
        sites = find_sites(AutoModelForCausalLM.from_config(config))
    for seed, rank in ((1, 8), (2, 5)):
        tensors = {
            name: (tensor * (0.3 if "lora_B" in name else tensor.shape[1] ** -0.5)).bfloat16()
            for name, tensor in random_tensors(sites, LEAVES, rank, seed=seed).items()
        }
        write_adapter(directory / f"adapter{seed}", tensors, config_fields(rank, list(LEAVES), lora_alpha=rank))
    return directory


@pytest.fixture(scope="module", params=[(o, s) for o in (False, True) for s in (False, True)])
def llm(request: pytest.FixtureRequest, directory: Path) -> Iterator[LLM]:
    overlap, specialize = request.param
    lora_config = LoraConfig(
        max_lora_rank=8, max_loras=2, overlap_lora_and_base=overlap, cuda_graph_specialize_lora=specialize
    )
    with LLM(
        model=directory / "model",
        load_format="dummy",
        skip_tokenizer_init=True,
        executor="inline",
        device="cuda",
        dtype="bfloat16",
        max_batch_size=8,
        max_num_tokens=512,
        max_seq_len=128,
        kv_cache_config={"enable_block_reuse": False},
        lora_config=lora_config,
    ) as llm:
        yield llm
    torch.cuda.empty_cache()


@pytest.fixture(scope="module")
def adapters(directory: Path) -> list[LoRARequest]:
    return [LoRARequest(f"adapter{number}", number, str(directory / f"adapter{number}")) for number in (1, 2)]


class TestQwen3LoRA(Qwen3LoRASanity):
    tolerance = 0.15  # bfloat16: batches of different sizes take different GEMM kernels

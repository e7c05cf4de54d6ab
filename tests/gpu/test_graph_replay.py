"""Captured decode steps: equal to eager ones bit for bit, whatever adapters come and go, and right by PEFT."""

import random
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from tensorrt_lora import LoraConfig, LoRARequest, TorchLlmArgs
from tensorrt_lora.adapters.adapter_reader import AdapterReader
from tensorrt_lora.engine.model_loader import load_model
from tensorrt_lora.lora.adapter_slot_manager import AdapterKey
from tests.support.forced_decoding import ForcedDecoding
from tests.support.random_adapters import RandomAdapter, random_adapter
from tests.support.tiny_adapters import save_peft_adapter
from tests.support.tiny_models import VOCAB_SIZE, make_tiny_model, save_tiny_model

pytestmark = pytest.mark.gpu

BATCH, SLOTS, STEPS = 8, 4, 1024
SHAPE: dict[str, object] = {
    "head_dim": 128,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "max_position_embeddings": 2048,
}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Logits of deviation 1: bfloat16 then moves a log-probability by about 0.015, far below the bound of 0.1."""
    directory = tmp_path_factory.mktemp("model")
    return save_tiny_model(directory, "qwen3_untied", dtype=torch.bfloat16, overrides=SHAPE, logit_std=1.0)


def make_args(model_dir: Path, *, graphs: bool, overlap: bool, specialize: bool = True) -> TorchLlmArgs:
    return TorchLlmArgs(
        model=model_dir,
        dtype="bfloat16",
        device="cuda",
        max_batch_size=BATCH,
        max_num_tokens=2048,
        # Captured prefills run another attention kernel than eager ones, and their last bits would go on to decode.
        cuda_graph_config={"batch_sizes": [1, 4, BATCH], "prefill_token_buckets": []} if graphs else None,
        kv_cache_config={"max_tokens": BATCH * 2048},
        lora_config=LoraConfig(
            max_loras=SLOTS,
            max_lora_rank=64,
            overlap_lora_and_base=overlap,
            cuda_graph_specialize_lora=specialize,
        ),
    )


def make_pair(model_dir: Path, *, overlap: bool) -> tuple[ForcedDecoding, ForcedDecoding]:
    """(captured, eager) drivers with the same weights."""
    captured, eager = (ForcedDecoding(make_args(model_dir, graphs=graphs, overlap=overlap)) for graphs in (True, False))
    assert captured.engine.graph_runner.enabled and not eager.engine.graph_runner.enabled
    return captured, eager


def make_adapters(driver: ForcedDecoding) -> list[RandomAdapter]:
    """More adapters than slots, of ranks that differ between adapters and modules."""
    assert driver.loaded.lora_manager is not None
    sites = driver.loaded.lora_manager.sites
    ranks = [1, 3, 8, 17, 32, 64]
    return [
        random_adapter(sites, number, rank=lambda site, r=rank: max(1, r - int(site.module_type)))
        for number, rank in enumerate(ranks)
    ]


def adapters_of_step(step: int, adapters: list[RandomAdapter]) -> list[RandomAdapter | None]:
    """None, one, several and all slots in turn, with base rows, in an order and choice that changes every step."""
    rng = random.Random(step)
    distinct = [0, 1, 2, SLOTS][step % 4]
    chosen: list[RandomAdapter | None] = [None, *rng.sample(adapters, distinct)]
    return [rng.choice(chosen) for _ in range(BATCH)]


@pytest.mark.parametrize("overlap", [False, True], ids=["sequential", "overlap"])
def test_replays_equal_eager_steps_while_adapters_swap(model_dir: Path, overlap: bool):
    captured, eager = make_pair(model_dir, overlap=overlap)
    adapters = make_adapters(captured)
    rng = random.Random(0)
    prompts = [[rng.randrange(256) for _ in range(5 + 7 * row)] for row in range(BATCH)]
    first: list[RandomAdapter | None] = [None] * BATCH
    assert torch.equal(captured.prefill(prompts, first), eager.prefill(prompts, first))
    for step in range(STEPS):
        tokens = [rng.randrange(256) for _ in range(BATCH)]
        batch = adapters_of_step(step, adapters)
        replayed, expected = captured.decode(tokens, batch), eager.decode(tokens, batch)
        assert torch.equal(replayed, expected), f"step {step}: logits differ by {(replayed - expected).abs().max()}"


@pytest.mark.parametrize("overlap", [False, True], ids=["sequential", "overlap"])
def test_base_rows_of_a_mixed_batch_equal_a_base_only_batch(model_dir: Path, overlap: bool):
    """In the graph with LoRA and in the one without it, base rows have the same bits."""
    args = make_args(model_dir, graphs=True, overlap=overlap)
    mixed, alone = ForcedDecoding(args), ForcedDecoding(args)
    adapters = make_adapters(mixed)
    base_rows = [1, 2, 5]
    batch = [None if row in base_rows else adapters[row % SLOTS] for row in range(BATCH)]
    rng = random.Random(1)
    prompts = [[rng.randrange(256) for _ in range(9)] for _ in range(BATCH)]
    nobody: list[RandomAdapter | None] = [None] * BATCH
    mixed.prefill(prompts, batch)
    alone.prefill(prompts, nobody)
    for _ in range(64):
        tokens = [rng.randrange(256) for _ in range(BATCH)]
        with_adapters, without = mixed.decode(tokens, batch), alone.decode(tokens, nobody)
        assert torch.equal(with_adapters[base_rows], without[base_rows])
        assert not torch.equal(with_adapters, without)


def test_repeated_runs_have_the_same_bits(model_dir: Path):
    runs = []
    for _ in range(2):
        driver = ForcedDecoding(make_args(model_dir, graphs=True, overlap=True))
        adapters = make_adapters(driver)
        rng = random.Random(2)
        driver.prefill([[1, 2, 3]] * BATCH, [None] * BATCH)
        steps = [
            driver.decode([rng.randrange(256) for _ in range(BATCH)], adapters_of_step(step, adapters))
            for step in range(40)
        ]
        runs.append(torch.stack(steps))
    assert torch.equal(*runs)


def load_reference(model_dir: Path) -> torch.nn.Module:
    """Read from the files: `.to(bfloat16)` on a float32 model would round the rotary frequencies as well."""
    return AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.bfloat16).to("cuda").eval()


def test_a_thousand_captured_steps_agree_with_peft(model_dir: Path, tmp_path: Path):
    """Forced-token log-probabilities of four adapters and a base row, within 0.1 of transformers + PEFT in bfloat16."""
    from peft import LoraConfig as PeftLoraConfig

    driver = ForcedDecoding(make_args(model_dir, graphs=True, overlap=True))
    manager = driver.loaded.lora_manager
    assert manager is not None
    reader = AdapterReader(sites=manager.sites, lora_config=LoraConfig(max_lora_rank=64), dtype=torch.bfloat16)
    configs = [
        {"r": 1, "lora_alpha": 2, "target_modules": ["q_proj", "v_proj"]},
        {"r": 17, "lora_alpha": 8, "target_modules": "all-linear", "use_rslora": True},
        {"r": 32, "lora_alpha": 32, "target_modules": ["o_proj", "gate_proj", "down_proj"]},
        {"r": 64, "lora_alpha": 16, "target_modules": ["k_proj", "up_proj"], "rank_pattern": {"up_proj": 5}},
    ]
    models: list[torch.nn.Module] = [load_reference(model_dir)]
    adapters: list[RandomAdapter | None] = [None]
    for number, fields in enumerate(configs):
        path = tmp_path / str(number)
        config = PeftLoraConfig(task_type="CAUSAL_LM", **fields)
        save_peft_adapter(path, make_tiny_model("qwen3_untied", overrides=SHAPE), config, seed=number, strength=0.3)
        weights = reader.read(LoRARequest(str(number), number, str(path)))
        adapters.append(RandomAdapter(AdapterKey(number, weights.version), weights))
        models.append(PeftModel.from_pretrained(load_reference(model_dir), path).eval())

    rng = random.Random(3)
    sequences = [[rng.randrange(256) for _ in range(8 + STEPS)] for _ in adapters]
    logits = [driver.prefill([sequence[:8] for sequence in sequences], adapters)]
    for step in range(STEPS - 1):
        logits.append(driver.decode([sequence[8 + step] for sequence in sequences]))
    ours = torch.stack(logits, dim=1).float().log_softmax(-1)
    for row, (model, sequence) in enumerate(zip(models, sequences, strict=True)):
        with torch.inference_mode():
            expected = model(torch.tensor([sequence[:-1]], device="cuda")).logits[0, 7:].float().log_softmax(-1)
        forced = torch.tensor(sequence[8:], device="cuda")[:, None]
        difference = (ours[row].gather(1, forced) - expected.gather(1, forced)).abs()
        print(f"row {row}: largest difference {difference.max():.3f}, mean {difference.mean():.4f}")
        assert difference.max() < 0.1
    assert ours.shape[-1] == VOCAB_SIZE


def test_a_base_only_graph_is_captured_only_when_specialised(model_dir: Path):
    for specialize in (True, False):
        args = make_args(model_dir, graphs=True, overlap=False, specialize=specialize)
        keys = ForcedDecoding(args, load_model(args, progress=False)).engine.graph_runner.graph_memory
        assert any(key.plan is None for key in keys) is specialize

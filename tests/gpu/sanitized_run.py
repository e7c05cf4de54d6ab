"""A small captured run with overlap, for compute-sanitizer: many kernels, few repetitions. Not a test by itself.

compute-sanitizer --tool memcheck --error-exitcode 1 python -m tests.gpu.sanitized_run
"""

import tempfile
from pathlib import Path

import torch

from tensorrt_lora import LoraConfig, TorchLlmArgs
from tests.support.forced_decoding import ForcedDecoding
from tests.support.random_adapters import random_adapter
from tests.support.tiny_models import save_tiny_model


def main() -> None:
    shape: dict[str, object] = {"head_dim": 128, "hidden_size": 512, "intermediate_size": 1024}
    with tempfile.TemporaryDirectory() as directory:
        model_dir = save_tiny_model(Path(directory), "qwen3", dtype=torch.bfloat16, overrides=shape)
        driver = ForcedDecoding(
            TorchLlmArgs(
                model=model_dir,
                dtype="bfloat16",
                device="cuda",
                max_batch_size=4,
                max_num_tokens=256,
                max_seq_len=256,
                cuda_graph_config={"batch_sizes": [1, 4]},
                lora_config=LoraConfig(max_loras=2, max_lora_rank=32, overlap_lora_and_base=True),
            )
        )
    manager = driver.loaded.lora_manager
    assert manager is not None and driver.engine.graph_runner.enabled
    adapters = [random_adapter(manager.sites, number, rank=rank) for number, rank in enumerate((3, 17, 32))]
    batches = [[None] * 3, [adapters[0], None, adapters[1]], [adapters[2], adapters[2], None]]
    logits = driver.prefill([[1, 2, 3], [4] * 70, [5] * 17], batches[1])
    for batch in batches:
        logits = driver.decode([7, 8, 9], batch)
    torch.cuda.synchronize()
    assert logits.isfinite().all()
    print("sanitized run: done")


if __name__ == "__main__":
    main()

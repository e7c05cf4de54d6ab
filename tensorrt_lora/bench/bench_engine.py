"""An engine with dummy weights and random adapters, sized for given workloads.

Shared by the benchmarks. Owns how a preset and workloads become the engine's arguments; what is measured is
up to the caller.
"""

import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from tensorrt_lora.bench.batch_run import BatchRun
from tensorrt_lora.bench.random_adapter_reader import RandomAdapterReader
from tensorrt_lora.bench.timed_model_engine import TimedModelEngine
from tensorrt_lora.bench.workload import Workload
from tensorrt_lora.config.cuda_graph_config import CudaGraphConfig
from tensorrt_lora.config.kv_cache_config import KvCacheConfig
from tensorrt_lora.config.llm_args import TorchLlmArgs
from tensorrt_lora.config.lora_config import LoraConfig
from tensorrt_lora.config.model_presets import find_preset
from tensorrt_lora.config.peft_cache_config import PeftCacheConfig
from tensorrt_lora.engine.generation_request import GenerationRequest
from tensorrt_lora.engine.model_loader import load_model
from tensorrt_lora.engine.py_executor import PyExecutor
from tensorrt_lora.lora.lora_plan import LoraPlan
from tensorrt_lora.lora_request import LoRARequest
from tensorrt_lora.sampling_params import SamplingParams
from tensorrt_lora.utils.device import pin_memory_available

_TOKENS_PER_BLOCK = 16
# The seven projections of a decoder layer.
_TARGET_MODULES = ["attn_q", "attn_k", "attn_v", "attn_dense", "mlp_h_to_4h", "mlp_gate", "mlp_4h_to_h"]


class BenchEngine:
    """One engine with a graph for every batch size and plan, over the same weights, KV cache and slots.

    Args:
        preset: name of a model preset.
        workloads: what it will run; their concurrencies are the captured batch sizes.
        lora_rank: of all adapters.
        plans: LoRA plans to capture; None in it is the graph without LoRA.
        device: as in `TorchLlmArgs`.
        max_num_tokens: as in `TorchLlmArgs`.
        seed: of the weights.
        progress: show progress bars on the terminal.

    Raises:
        ValueError: an unknown preset, a device that is not there, too little memory.
    """

    def __init__(
        self,
        preset: str,
        workloads: Sequence[Workload],
        *,
        lora_rank: int,
        plans: tuple[LoraPlan | None, ...],
        device: Literal["auto", "cpu", "cuda"] = "auto",
        max_num_tokens: int = 8192,
        seed: int = 0,
        progress: bool = False,
    ) -> None:
        num_adapters = max(workload.num_adapters for workload in workloads)
        with tempfile.TemporaryDirectory() as directory:
            args = _create_args(
                find_preset(preset).write(Path(directory) / preset),
                workloads,
                lora_config=LoraConfig(
                    max_lora_rank=lora_rank,
                    max_loras=num_adapters,
                    lora_target_modules=_TARGET_MODULES,
                    overlap_lora_and_base=True,
                ),
                device=device,
                max_num_tokens=max_num_tokens,
                seed=seed,
            )
            self.loaded = load_model(args, progress=progress)
        assert self.loaded.lora_manager is not None
        self.lora_manager = self.loaded.lora_manager
        self.engine = TimedModelEngine(args, self.loaded, progress=progress, graph_plans=plans)
        self._reader = RandomAdapterReader(
            self.lora_manager.sites,
            num_adapters=num_adapters,
            rank=lora_rank,
            dtype=self.loaded.dtype,
            pin_memory=pin_memory_available(self.loaded.device),
            seed=seed,
        )
        self._executor = PyExecutor(args, loaded=self.loaded, engine=self.engine, read_adapter=self._reader.read)
        self._request_ids = itertools.count()

    @property
    def adapter_bytes(self) -> int:
        """Bytes of one adapter's weights on the device."""
        return self._reader.read(_lora_request(0)).nbytes

    def submit(self, workload: Workload, plan: LoraPlan | None, *, num_tokens: int | None = None) -> BatchRun:
        """Start a batch; decode steps run as `plan` says, and without adapters for None.

        Args:
            num_tokens: to generate for each request, in place of the workload's `osl`.
        """
        if plan is not None:
            self.lora_manager.plan = plan
        params = SamplingParams(max_tokens=num_tokens or workload.osl, ignore_eos=True)
        requests = [
            GenerationRequest(next(self._request_ids), prompt, params, None if plan is None else _lora_request(adapter))
            for prompt, adapter in zip(
                workload.prompts(self.loaded.config.vocab_size), workload.adapter_ids(), strict=True
            )
        ]
        return BatchRun(self._executor, self.engine, requests)

    def close(self) -> None:
        """Stop the adapter loader."""
        self._executor.shutdown()


def _create_args(
    model_dir: Path,
    workloads: Sequence[Workload],
    *,
    lora_config: LoraConfig,
    device: Literal["auto", "cpu", "cuda"],
    max_num_tokens: int,
    seed: int,
) -> TorchLlmArgs:
    max_batch_size = max(workload.concurrency for workload in workloads)
    return TorchLlmArgs(
        model=str(model_dir),
        skip_tokenizer_init=True,
        load_format="dummy",
        device=device,
        max_batch_size=max_batch_size,
        max_num_tokens=max(max_num_tokens, max_batch_size),
        # A page more than the longest request needs: the scheduler keeps one in hand for each that runs.
        max_seq_len=max(workload.isl + workload.osl for workload in workloads) + _TOKENS_PER_BLOCK,
        kv_cache_config=KvCacheConfig(enable_block_reuse=False, tokens_per_block=_TOKENS_PER_BLOCK),
        cuda_graph_config=CudaGraphConfig(batch_sizes=sorted({workload.concurrency for workload in workloads})),
        # The slots bound what is taken; on the host, adapters are views of one block.
        peft_cache_config=PeftCacheConfig(device_cache_percent=0.8, host_cache_size=2**50),
        lora_config=lora_config,
        seed=seed,
    )


def _lora_request(adapter: int) -> LoRARequest:
    name = f"random-{adapter}"
    return LoRARequest(name, adapter, name)

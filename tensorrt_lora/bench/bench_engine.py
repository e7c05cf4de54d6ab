"""An engine with dummy weights and random adapters, sized for given workloads.

Shared by the benchmarks. Owns how a preset and workloads become the engine's arguments; what is measured is
up to the caller.
"""

import itertools
import tempfile
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from tensorrt_lora.bench.batch_run import BatchRun
from tensorrt_lora.bench.bench_mode import TUNED, BenchPlan
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
from tensorrt_lora.lora.lora_plans import LoraPlans
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
        lora_ranks: of the adapters in turn, starting again after the last.
        plans: what to capture.
        device: as in `TorchLlmArgs`.
        max_num_tokens: as in `TorchLlmArgs`.
        seed: of the weights.
        progress: show progress bars on the terminal.
        num_adapters: adapters that there are, where single requests name more than the workloads do.
        mixed_steps: whether prefills of any size join steps, so that all sizes of the default are captured.

    Raises:
        ValueError: an unknown preset, a device that is not there, too little memory.
    """

    def __init__(
        self,
        preset: str,
        workloads: Sequence[Workload],
        *,
        lora_ranks: Sequence[int],
        plans: tuple[BenchPlan, ...],
        device: Literal["auto", "cpu", "cuda"] = "auto",
        max_num_tokens: int = 8192,
        seed: int = 0,
        progress: bool = False,
        num_adapters: int = 1,
        mixed_steps: bool = False,
    ) -> None:
        num_adapters = max(num_adapters, *(workload.num_adapters for workload in workloads))
        with tempfile.TemporaryDirectory() as directory:
            args = _create_args(
                find_preset(preset).write(Path(directory) / preset),
                workloads,
                lora_config=LoraConfig(
                    max_lora_rank=max(lora_ranks),
                    max_loras=num_adapters,
                    lora_target_modules=_TARGET_MODULES,
                    overlap_lora_and_base=True,
                ),
                device=device,
                max_num_tokens=max_num_tokens,
                mixed_steps=mixed_steps,
                seed=seed,
            )
            self.loaded = load_model(args, progress=progress)
        assert self.loaded.lora_manager is not None
        self.lora_manager = self.loaded.lora_manager
        self._plans = plans
        self.engine = TimedModelEngine(args, self.loaded, progress=progress, graph_plans=self._graph_plans)
        self._reader = RandomAdapterReader(
            self.lora_manager.sites,
            num_adapters=num_adapters,
            ranks=lora_ranks,
            dtype=self.loaded.dtype,
            pin_memory=pin_memory_available(self.loaded.device),
            seed=seed,
        )
        self.executor = PyExecutor(args, loaded=self.loaded, engine=self.engine, read_adapter=self._reader.read)
        self._request_ids = itertools.count()
        self._num_adapters = num_adapters

    @property
    def adapter_ranks(self) -> tuple[int, ...]:
        """Rank of each adapter."""
        return tuple(self._reader.rank(adapter) for adapter in range(self._num_adapters))

    @property
    def adapter_bytes(self) -> tuple[int, ...]:
        """Bytes of each adapter's weights on the device."""
        return tuple(self._reader.read(_lora_request(adapter)).nbytes for adapter in range(self._num_adapters))

    def use_plan(self, plan: BenchPlan) -> None:
        """How LoRA runs from the next step on."""
        self.lora_manager.fixed_plan = plan if isinstance(plan, LoraPlan) else None

    def _graph_plans(self, num_rows: int) -> list[LoraPlans | None]:
        """What to capture for so many rows."""
        fixed = [LoraPlans(plan) for plan in self._plans if isinstance(plan, LoraPlan)]
        tuned = self.lora_manager.graph_plans(num_rows) if TUNED in self._plans else ()
        base_only = (None,) if None in self._plans else ()
        return list(dict.fromkeys((*fixed, *tuned, *base_only)))

    def create_request(self, prompt: list[int], num_tokens: int, adapter: int | None) -> GenerationRequest:
        """A request of its own id that generates exactly `num_tokens`; None is no adapter."""
        params = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
        lora_request = None if adapter is None else _lora_request(adapter)
        return GenerationRequest(next(self._request_ids), prompt, params, lora_request)

    def submit(self, workload: Workload, plan: BenchPlan, *, num_tokens: int | None = None) -> BatchRun:
        """Start a batch; decode steps run as `plan` says, and without adapters for None.

        Args:
            num_tokens: to generate for each request, in place of the workload's `osl`.
        """
        if plan is not None:
            self.use_plan(plan)
        requests = [
            self.create_request(prompt, num_tokens or workload.osl, None if plan is None else adapter)
            for prompt, adapter in zip(
                workload.prompts(self.loaded.config.vocab_size), workload.adapter_ids(), strict=True
            )
        ]
        return BatchRun(self.executor, self.engine, requests)

    def close(self) -> None:
        """Stop the adapter loader."""
        self.executor.shutdown()


def _create_args(
    model_dir: Path,
    workloads: Sequence[Workload],
    *,
    lora_config: LoraConfig,
    device: Literal["auto", "cpu", "cuda"],
    max_num_tokens: int,
    mixed_steps: bool,
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
        cuda_graph_config=CudaGraphConfig(
            batch_sizes=sorted({workload.concurrency for workload in workloads}),
            prefill_token_buckets=None if mixed_steps else _prefill_buckets(workloads, max_num_tokens),
        ),
        # The slots bound what is taken; on the host, adapters are views of one block.
        peft_cache_config=PeftCacheConfig(device_cache_percent=0.8, host_cache_size=2**50),
        lora_config=lora_config,
        seed=seed,
    )


def _prefill_buckets(workloads: Sequence[Workload], max_num_tokens: int) -> list[int]:
    """Of the sizes that the engine captures by default, those that hold a prefill of some workload."""
    buckets = CudaGraphConfig().resolve_prefill_token_buckets(max_num_tokens)
    needed = {bisect_left(buckets, workload.concurrency * workload.isl) for workload in workloads}
    return [bucket for index, bucket in enumerate(buckets) if index in needed]


def _lora_request(adapter: int) -> LoRARequest:
    name = f"random-{adapter}"
    return LoRARequest(name, adapter, name)

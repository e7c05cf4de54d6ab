"""Captures forwards as CUDA graphs at start-up, and replays them: decode steps, and small steps with a prefill.

Called by `PyTorchModelEngine`, which brings the two callables that fill the static inputs and run the model.
Knows of a model only that its forward returns as many rows as the key says; adapters change between replays
without a word to this class.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tensorrt_lora.config.cuda_graph_config import CudaGraphConfig
from tensorrt_lora.lora.lora_plans import LoraPlans
from tensorrt_lora.utils.logger import logger
from tensorrt_lora.utils.multi_stream_utils import with_multi_stream

_WARMUP_FORWARDS = 2  # the first compiles kernels and loads modules, the second runs as the captured one will


@dataclass(frozen=True, slots=True)
class GraphKey:
    """What a graph was captured for. Whatever else a step's kernels come to depend on is a further field."""

    batch_size: int  # rows, padding included: requests of a decode step, tokens of one with a prefill
    plan: LoraPlans | None  # how LoRA runs; None: no LoRA kernel in the graph
    is_prefill: bool = False  # for a step with a prefill in it; its output is hidden states, else logits


@dataclass(frozen=True, slots=True)
class CapturedGraph:
    graph: torch.cuda.CUDAGraph
    output: torch.Tensor  # [batch_size, ...]: view of the static output of its kind of step
    memory: int  # bytes that the capture took


class CUDAGraphRunner:
    """The captured graphs of one engine. Without CUDA or a config, `enabled` is False: no batch has a graph.

    Kernels compiled during the warm-up stay on disk for the next start: Triton's under `~/.triton/cache`
    (`TRITON_CACHE_DIR`), FlashInfer's under `~/.cache/flashinfer` (`FLASHINFER_WORKSPACE_BASE` replaces the
    home directory).

    Args:
        config: None for no graphs.
        max_batch_size: largest batch of the engine, in requests.
        max_num_tokens: its largest step, in tokens; 0 for no steps with a prefill.
    """

    def __init__(
        self, config: CudaGraphConfig | None, max_batch_size: int, max_num_tokens: int = 0, *, device: torch.device
    ) -> None:
        self.enabled = config is not None and device.type == "cuda"
        self.batch_sizes: list[int] = []  # ascending
        self.prefill_token_buckets: list[int] = []  # ascending
        self._enable_padding = False
        if config is not None and self.enabled:
            self.batch_sizes = config.resolve_batch_sizes(max_batch_size)
            self._enable_padding = config.enable_padding
            if max_num_tokens > 0:
                self.prefill_token_buckets = config.resolve_prefill_token_buckets(max_num_tokens)
        self._device = device
        self._graphs: dict[GraphKey, CapturedGraph] = {}
        self._outputs: dict[bool, torch.Tensor] = {}  # by `GraphKey.is_prefill`
        self.capture_seconds = 0.0
        self.num_replays = 0

    def padded_batch_size(self, batch_size: int) -> int | None:
        """The captured batch size that `batch_size` requests run in; None: run them eagerly."""
        return self._padded(batch_size, self.batch_sizes)

    def padded_num_tokens(self, num_tokens: int) -> int | None:
        """The captured step size that a step of `num_tokens` with a prefill runs in; None: run it eagerly."""
        return self._padded(num_tokens, self.prefill_token_buckets)

    def eager_sizes(self, max_num_tokens: int) -> list[int]:
        """Sizes of steps with a prefill that stand for those too long for a graph; none if there are no such steps.

        From the largest graph's, which many requests do not fit, each is twice the one before: kernels depend on a
        step's size in powers of two.
        """
        sizes = self.prefill_token_buckets[-1:]
        while sizes and sizes[-1] < max_num_tokens:
            sizes.append(min(2 * sizes[-1], max_num_tokens))
        return sizes if len(sizes) > 1 else []

    def _padded(self, rows: int, sizes: list[int]) -> int | None:
        index = bisect_left(sizes, rows)
        if index == len(sizes):
            return None
        return sizes[index] if sizes[index] == rows or self._enable_padding else None

    @property
    def graph_memory(self) -> dict[GraphKey, int]:
        """Bytes that each capture took, in the order of capture."""
        return {key: captured.memory for key, captured in self._graphs.items()}

    @torch.inference_mode()
    def capture(
        self,
        keys: Sequence[GraphKey],
        prepare: Callable[[GraphKey], None],
        forward: Callable[[GraphKey], torch.Tensor],
        *,
        progress: bool,
    ) -> None:
        """Warm up and capture every key, once, before the first replay.

        Warm-up and capture run on a side stream and allow the second stream of LoRA. All graphs share one
        memory pool: the largest is captured first, and the smaller ones reuse its memory. They may not run at
        the same time.

        Args:
            keys: in any order.
            prepare: fills the static inputs of a key; runs outside the capture, on the same stream.
            forward: from static inputs to [batch_size, ...]; must not wait for the device or copy from the
                host.
            progress: show a progress bar on the error stream.
        """
        assert self.enabled and not self._graphs, "capture is called once, on CUDA"
        start = time.perf_counter()
        stream = torch.cuda.Stream(self._device)
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with _progress_bar(enabled=progress) as bar, with_multi_stream(True), torch.cuda.stream(stream):
            task = bar.add_task("CUDA graphs", total=len(keys), detail="")
            for key in sorted(keys, key=_capture_order):
                bar.update(task, detail=_describe(key))
                self._graphs[key] = self._capture_one(key, prepare, forward, stream)
                bar.advance(task)
                logger.debug("%s: %.1f MiB", _describe(key), self._graphs[key].memory / 2**20)
        torch.cuda.current_stream(self._device).wait_stream(stream)
        self.capture_seconds = time.perf_counter() - start
        logger.info(
            "CUDA graphs: %d for batch sizes %s and prefills of %s tokens, %.1f MiB, captured in %.1f s",
            len(self._graphs),
            self.batch_sizes,
            self.prefill_token_buckets,
            sum(self.graph_memory.values()) / 2**20,
            self.capture_seconds,
        )

    def replay(self, key: GraphKey) -> torch.Tensor:
        """Run a captured forward on the current stream. Its static inputs must have been filled on the same
        stream.

        Returns:
            [batch_size, ...]: a view of static memory, valid until the next replay of a key of the same kind of step.
        """
        captured = self._graphs[key]
        captured.graph.replay()
        self.num_replays += 1
        return captured.output

    def _capture_one(
        self,
        key: GraphKey,
        prepare: Callable[[GraphKey], None],
        forward: Callable[[GraphKey], torch.Tensor],
        stream: torch.cuda.Stream,
    ) -> CapturedGraph:
        prepare(key)
        for _ in range(_WARMUP_FORWARDS):
            result = forward(key)
        assert result.shape[0] == key.batch_size, f"{key} gave {result.shape[0]} rows"
        # One output for all graphs of a kind: outputs of their own would add up to the sum of all batch sizes.
        if key.is_prefill not in self._outputs:
            self._outputs[key.is_prefill] = torch.empty_like(result)
        output = self._outputs[key.is_prefill][: key.batch_size]
        del result
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        free_before, _ = torch.cuda.mem_get_info(self._device)
        graph = torch.cuda.CUDAGraph()
        pool = next(iter(self._graphs.values())).graph.pool() if self._graphs else None
        # Threads that load adapters may allocate meanwhile: only this thread's calls are checked.
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            output.copy_(forward(key))
        free_after, _ = torch.cuda.mem_get_info(self._device)
        return CapturedGraph(graph, output, max(free_before - free_after, 0))


def _capture_order(key: GraphKey) -> tuple[int, bool, bool]:
    """Most rows first, and of one size the graph with LoRA first: what follows fits into its memory."""
    return -key.batch_size, not key.is_prefill, key.plan is None


def _describe(key: GraphKey) -> str:
    size = f"prefill of {key.batch_size} tokens" if key.is_prefill else f"batch size {key.batch_size}"
    return f"{size}, {f'LoRA {key.plan}' if key.plan else 'base only'}"


def _progress_bar(*, enabled: bool) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[detail]}"),
        console=Console(stderr=True),
        disable=not enabled,
    )

"""One forward of the model over a scheduled batch: inputs, attention metadata, LoRA, and the graph or eager run.

Called once a step by `PyExecutor`. Wires what the ranks below provide; decides nothing about requests.
"""

from dataclasses import dataclass

import numpy as np
import torch

from tensorrt_lora.adapters.adapter_handle import AdapterHandle
from tensorrt_lora.attention_backend.interface import AttentionBatch, AttentionMetadata
from tensorrt_lora.config.llm_args import TorchLlmArgs
from tensorrt_lora.engine.cuda_graph_runner import CUDAGraphRunner, GraphKey
from tensorrt_lora.engine.input_buffers import InputBuffers
from tensorrt_lora.engine.llm_request import IN_FLIGHT_TOKEN, LlmRequest
from tensorrt_lora.engine.model_loader import LoadedModel
from tensorrt_lora.engine.sampler import PendingSamples
from tensorrt_lora.engine.scheduled_requests import ContextChunk, ScheduledRequests
from tensorrt_lora.lora.cuda_graph_lora_manager import CudaGraphLoraManager
from tensorrt_lora.lora.lora_params import LoraParams
from tensorrt_lora.lora.lora_plan import LoraPlan

_PADDING_PAGE = 0


@dataclass(slots=True)
class PromptRows:
    """Some prompt positions of one request whose log-probabilities are wanted."""

    request: LlmRequest
    positions: range
    hidden: torch.Tensor  # [len(positions), H]; the logits of a long prompt at once would take gigabytes


@dataclass(slots=True)
class StepOutput:
    """What one forward gives the sampler."""

    logits: torch.Tensor  # [n, vocab], one row for each of `ScheduledRequests.sampled_requests`, in order
    prompt_rows: list[PromptRows]


class PyTorchModelEngine:
    """Runs forwards; owns the static inputs, the attention metadata and the captured graphs.

    Args:
        graph_plans: the LoRA plans to capture for each batch size (None in it: the graph without LoRA); by default what
            the LoRA manager will ask for.
    """

    def __init__(
        self,
        args: TorchLlmArgs,
        loaded: LoadedModel,
        *,
        progress: bool,
        graph_plans: tuple[LoraPlan | None, ...] | None = None,
    ) -> None:
        backend = loaded.attention_backend
        self._model = loaded.model
        self._lora_manager: CudaGraphLoraManager | None = loaded.lora_manager
        self._inputs = InputBuffers(
            max_num_tokens=args.max_num_tokens, max_batch_size=args.max_batch_size, device=loaded.device
        )
        self._eager_metadata = backend.Metadata(
            kv_cache=loaded.kv_cache,
            num_heads=loaded.config.num_heads,
            max_num_requests=args.max_batch_size,
            max_num_tokens=args.max_num_tokens,
            use_cuda_graph=False,
        )
        self.graph_runner = CUDAGraphRunner(
            args.cuda_graph_config if backend.supports_cuda_graph else None,
            args.max_batch_size,
            device=loaded.device,
        )
        self._graph_metadata: dict[int, AttentionMetadata] = {}
        self._graph_lora_params: dict[GraphKey, LoraParams | None] = {}
        if self.graph_runner.enabled:
            self._capture_graphs(graph_plans, progress)

    @torch.inference_mode()
    def forward(self, scheduled: ScheduledRequests, in_flight: PendingSamples | None = None) -> StepOutput:
        """Queue one step of at least one token.

        Args:
            in_flight: the samples of the step before, where the host has not waited for them: the newest tokens of
                its rows are taken from there.
        """
        chunks = scheduled.context
        if not chunks:
            key = self._graph_key(scheduled.generation)
            if key is not None:
                logits = self._replay(key, scheduled.generation, in_flight)
                return StepOutput(logits, [])
        hidden = self._forward_eager(chunks, scheduled.generation, in_flight)
        return self._select_logits(hidden, chunks, scheduled.generation)

    @torch.inference_mode()
    def compute_logits(
        self, hidden: torch.Tensor, adapters: list[AdapterHandle | None], num_rows: list[int]
    ) -> torch.Tensor:
        """[n, H] -> [n, vocab] float32, where `num_rows` says how many rows each request has, in order.

        Call after the step's forward: where the head can be adapted, its rows take the place of the step's tokens in
        the LoRA metadata.
        """
        lora_params = None
        if self._lora_manager is not None and self._lora_manager.adapts_head:
            lora_params = self._prepare_lora(adapters, num_rows)
        return self._model.compute_logits(hidden, lora_params)

    def _forward_eager(
        self, chunks: list[ContextChunk], generation: list[LlmRequest], in_flight: PendingSamples | None
    ) -> torch.Tensor:
        """Hidden states [T, H] of the prefill chunks' tokens and one token per generation, in this order."""
        batch = AttentionBatch(
            num_contexts=len(chunks),
            query_lens=[chunk.length for chunk in chunks] + [1] * len(generation),
            kv_lens=[chunk.start + chunk.length for chunk in chunks] + [r.num_tokens for r in generation],
            page_ids=[chunk.request.page_ids for chunk in chunks] + [r.page_ids for r in generation],
        )
        ids = [chunk.token_ids for chunk in chunks] + [[r.output_token_ids[-1]] for r in generation]
        input_ids, position_ids = self._inputs.write(np.concatenate(ids).astype(np.int64), _positions(batch))
        self._fill_in_flight(generation, input_ids.shape[0] - len(generation), in_flight)
        self._eager_metadata.prepare(batch)
        requests = [chunk.request for chunk in chunks] + generation
        lora_params = self._prepare_lora([r.adapter for r in requests], batch.query_lens)
        return self._model(input_ids, position_ids, self._eager_metadata, lora_params)

    def _fill_in_flight(self, generation: list[LlmRequest], first_row: int, in_flight: PendingSamples | None) -> None:
        """Give the generations whose newest token only the device knows their input ids."""
        unknown = [row for row, r in enumerate(generation) if r.output_token_ids[-1] == IN_FLIGHT_TOKEN]
        if unknown:
            assert in_flight is not None, "a token is in flight, but the step that samples it was not passed"
            sources = {id(request): source for source, request in enumerate(in_flight.rows)}
            rows = [first_row + row for row in unknown]
            self._inputs.fill_in_flight(rows, in_flight.token_ids, [sources[id(generation[row])] for row in unknown])

    def _prepare_lora(self, adapters: list[AdapterHandle | None], query_lens: list[int]) -> LoraParams | None:
        if self._lora_manager is None or all(adapter is None for adapter in adapters):
            return None
        return self._lora_manager.prepare(adapters, query_lens)

    def _select_logits(
        self, hidden: torch.Tensor, chunks: list[ContextChunk], generation: list[LlmRequest]
    ) -> StepOutput:
        """Logits after the newest token of every request whose tokens are all computed; prompt rows as they are."""
        rows: list[int] = []
        sampled = [chunk.request for chunk in chunks if chunk.is_last] + generation
        prompt_rows = []
        end = 0
        for chunk in chunks:
            end += chunk.length
            if chunk.is_last:
                rows.append(end - 1)
            positions = chunk.request.prompt_logprob_positions(chunk.start, chunk.stop)
            if positions:
                first = end - chunk.stop + positions.start
                prompt_rows.append(PromptRows(chunk.request, positions, hidden[first : first + len(positions)]))
        rows += range(end, end + len(generation))
        newest = hidden[torch.tensor(rows, dtype=torch.int64, device=hidden.device)]
        logits = self.compute_logits(newest, [request.adapter for request in sampled], [1] * len(sampled))
        return StepOutput(logits, prompt_rows)

    # Captured decode steps

    def _graph_key(self, generation: list[LlmRequest]) -> GraphKey | None:
        batch_size = self.graph_runner.padded_batch_size(len(generation))
        if batch_size is None:
            return None
        plan = None
        if self._lora_manager is not None:
            plan = self._lora_manager.graph_plan([request.adapter for request in generation])
        return GraphKey(batch_size, plan)

    def _replay(self, key: GraphKey, generation: list[LlmRequest], in_flight: PendingSamples | None) -> torch.Tensor:
        padding = key.batch_size - len(generation)
        batch = _decode_batch([r.num_tokens for r in generation], [r.page_ids for r in generation], padding)
        input_ids = np.zeros(key.batch_size, dtype=np.int64)
        input_ids[: len(generation)] = [request.output_token_ids[-1] for request in generation]
        self._write_decode_batch(batch, input_ids)
        self._fill_in_flight(generation, 0, in_flight)
        if key.plan is not None:
            assert self._lora_manager is not None
            self._lora_manager.prepare(
                [request.adapter for request in generation],
                [1] * len(generation),
                num_padding_tokens=padding,
                graph_plan=key.plan,
            )
        return self.graph_runner.replay(key)[: len(generation)]

    def _capture_graphs(self, plans: tuple[LoraPlan | None, ...] | None, progress: bool) -> None:
        if plans is None:
            plans = self._lora_manager.graph_plans() if self._lora_manager is not None else (None,)
        for batch_size in self.graph_runner.batch_sizes:
            self._graph_metadata[batch_size] = self._eager_metadata.create_cuda_graph_metadata(batch_size)
        keys = [GraphKey(size, plan) for size in self.graph_runner.batch_sizes for plan in plans]
        self.graph_runner.capture(keys, self._prepare_padding, self._forward_padding, progress=progress)

    def _prepare_padding(self, key: GraphKey) -> None:
        """Fill the static inputs of a graph with a batch of padding rows."""
        self._write_decode_batch(_decode_batch([], [], key.batch_size), np.zeros(key.batch_size, dtype=np.int64))
        self._graph_lora_params[key] = None
        if key.plan is not None:
            assert self._lora_manager is not None
            self._graph_lora_params[key] = self._lora_manager.prepare(
                [], [], num_padding_tokens=key.batch_size, graph_plan=key.plan
            )

    def _forward_padding(self, key: GraphKey) -> torch.Tensor:
        """The forward to capture: logits [batch_size, vocab] of what is in the static inputs."""
        input_ids, position_ids = self._inputs.views(key.batch_size)
        metadata = self._graph_metadata[key.batch_size]
        lora_params = self._graph_lora_params[key]
        hidden = self._model(input_ids, position_ids, metadata, lora_params)
        return self._model.compute_logits(hidden, lora_params)

    def _write_decode_batch(self, batch: AttentionBatch, input_ids: np.ndarray) -> None:
        self._inputs.write(input_ids, _positions(batch))
        self._graph_metadata[batch.num_requests].prepare(batch)


def _positions(batch: AttentionBatch) -> np.ndarray:
    """Position of every token of the batch, int64 [T]."""
    spans = [
        np.arange(kv_len - query_len, kv_len, dtype=np.int64)
        for query_len, kv_len in zip(batch.query_lens, batch.kv_lens, strict=True)
    ]
    return np.concatenate(spans)


def _decode_batch(kv_lens: list[int], page_ids: list[list[int]], padding: int) -> AttentionBatch:
    """A batch of one token per request, padded with rows of one token on the reserved page."""
    return AttentionBatch(
        num_contexts=0,
        query_lens=[1] * (len(kv_lens) + padding),
        kv_lens=kv_lens + [1] * padding,
        page_ids=page_ids + [[_PADDING_PAGE]] * padding,
    )

"""One forward of the model over a scheduled batch: inputs, attention metadata, LoRA, and the graph or eager run.

Called once a step by `StepRunner`. Wires what the ranks below provide; decides nothing about requests.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from tensorrt_lora.adapters.adapter_handle import AdapterHandle
from tensorrt_lora.attention_backend.interface import AttentionMetadata
from tensorrt_lora.config.llm_args import TorchLlmArgs
from tensorrt_lora.engine.cuda_graph_runner import CUDAGraphRunner, GraphKey
from tensorrt_lora.engine.input_buffers import InputBuffers
from tensorrt_lora.engine.llm_request import IN_FLIGHT_TOKEN, LlmRequest
from tensorrt_lora.engine.model_loader import LoadedModel
from tensorrt_lora.engine.sampler import PendingSamples
from tensorrt_lora.engine.scheduled_requests import ScheduledRequests
from tensorrt_lora.engine.step_batch import StepBatch
from tensorrt_lora.lora.cuda_graph_lora_manager import CudaGraphLoraManager
from tensorrt_lora.lora.lora_params import LoraParams
from tensorrt_lora.lora.lora_plans import LoraPlans
from tensorrt_lora.utils.multi_stream_utils import with_multi_stream

# Requests of a captured step with a prefill. Each costs attention scratch, a tile of float32 rows for every head.
_MAX_PREFILL_GRAPH_REQUESTS = 64


GraphPlans: TypeAlias = Callable[[int], Sequence[LoraPlans | None]]
"""How LoRA runs in the graphs for so many rows; None: it is not in there."""


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
        graph_plans: how LoRA runs in the graphs to capture for so many rows (None in it: without LoRA); by default
            what the LoRA manager will ask for.
    """

    def __init__(
        self,
        args: TorchLlmArgs,
        loaded: LoadedModel,
        *,
        progress: bool,
        graph_plans: GraphPlans | None = None,
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
            args.max_num_tokens,
            device=loaded.device,
        )
        self._decode_metadata: dict[int, AttentionMetadata] = {}  # by batch size
        self._prefill_metadata: dict[int, AttentionMetadata] = {}  # by number of tokens
        self._graph_lora_params: dict[GraphKey, LoraParams | None] = {}
        if self.graph_runner.enabled:
            self._capture_graphs(graph_plans, args, progress)
            for num_tokens in self.graph_runner.eager_sizes(args.max_num_tokens):
                self._warm_up_eager(num_tokens)

    @torch.inference_mode()
    def forward(self, scheduled: ScheduledRequests, in_flight: PendingSamples | None = None) -> StepOutput:
        """Queue one step of at least one token.

        Args:
            in_flight: the samples of the step before, where the host has not waited for them: the newest tokens of
                its rows are taken from there.
        """
        key = self._graph_key(scheduled)
        if key is None:
            return self._select_logits(self._forward_eager(scheduled, in_flight), scheduled)
        output = self._replay(key, scheduled, in_flight)
        if key.is_prefill:
            return self._select_logits(output, scheduled, hidden_is_static=True)
        return StepOutput(output[: len(scheduled.generation)], [])

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

    def _forward_eager(self, scheduled: ScheduledRequests, in_flight: PendingSamples | None) -> torch.Tensor:
        """Hidden states [T, H] of the prefill chunks' tokens and one token per generation, in this order."""
        batch = StepBatch.eager(scheduled.context, scheduled.generation)
        self._inputs.write(batch.input_ids, batch.position_ids)
        self._fill_in_flight(scheduled, in_flight)
        return self._run_eager(batch, self._prepare_lora(batch.adapters, batch.query_lens))

    def _run_eager(self, batch: StepBatch, lora_params: LoraParams | None) -> torch.Tensor:
        """Hidden states [T, H] of a batch whose input ids and positions are written."""
        self._eager_metadata.prepare(batch.attention)
        input_ids, position_ids = self._inputs.views(batch.attention.num_tokens)
        with with_multi_stream(True):
            return self._model(input_ids, position_ids, self._eager_metadata, lora_params)

    @torch.inference_mode()
    def _warm_up_eager(self, num_tokens: int) -> None:
        """Run a step of padding without a graph: what it compiles is not compiled while requests wait."""
        batch = StepBatch.padding(num_tokens, mixed=self._eager_metadata.max_num_requests > 1)
        self._inputs.write(batch.input_ids, batch.position_ids)
        self._run_eager(batch, None)
        if self._lora_manager is not None:
            self._run_eager(batch, self._lora_manager.prepare([], [], num_padding_tokens=num_tokens))

    def _fill_in_flight(self, scheduled: ScheduledRequests, in_flight: PendingSamples | None) -> None:
        """Give the generations whose newest token only the device knows their input ids."""
        generation = scheduled.generation
        unknown = [row for row, r in enumerate(generation) if r.output_token_ids[-1] == IN_FLIGHT_TOKEN]
        if unknown:
            assert in_flight is not None, "a token is in flight, but the step that samples it was not passed"
            sources = {id(request): source for source, request in enumerate(in_flight.rows)}
            first_row = scheduled.num_tokens - len(generation)
            rows = [first_row + row for row in unknown]
            self._inputs.fill_in_flight(rows, in_flight.token_ids, [sources[id(generation[row])] for row in unknown])

    def _prepare_lora(self, adapters: list[AdapterHandle | None], query_lens: list[int]) -> LoraParams | None:
        if self._lora_manager is None or all(adapter is None for adapter in adapters):
            return None
        return self._lora_manager.prepare(adapters, query_lens)

    def _select_logits(
        self, hidden: torch.Tensor, scheduled: ScheduledRequests, *, hidden_is_static: bool = False
    ) -> StepOutput:
        """Logits after the newest token of every request whose tokens are all computed; prompt rows as they are.

        Args:
            hidden: [at least T, H].
            hidden_is_static: the next replay overwrites it, so what is kept beyond this step is copied.
        """
        rows: list[int] = []
        prompt_rows = []
        end = 0
        for chunk in scheduled.context:
            end += chunk.length
            if chunk.is_last:
                rows.append(end - 1)
            positions = chunk.request.prompt_logprob_positions(chunk.start, chunk.stop)
            if positions:
                first = end - chunk.stop + positions.start
                kept = hidden[first : first + len(positions)]
                prompt_rows.append(PromptRows(chunk.request, positions, kept.clone() if hidden_is_static else kept))
        rows += range(end, end + len(scheduled.generation))
        newest = hidden.index_select(0, self._inputs.sampled_rows(rows))
        sampled = scheduled.sampled_requests
        logits = self.compute_logits(newest, [request.adapter for request in sampled], [1] * len(sampled))
        return StepOutput(logits, prompt_rows)

    # Captured steps

    def _graph_key(self, scheduled: ScheduledRequests) -> GraphKey | None:
        """The graph of a step; None: it has none."""
        if scheduled.context:
            size = self.graph_runner.padded_num_tokens(scheduled.num_tokens)
            if size is None or not self._fits_prefill_graph(size, scheduled):
                return None
        else:
            size = self.graph_runner.padded_batch_size(len(scheduled.generation))
            if size is None:
                return None
        plan = None
        if self._lora_manager is not None:
            plan = self._lora_manager.graph_plan([request.adapter for request in scheduled.requests], size)
        return GraphKey(size, plan, is_prefill=bool(scheduled.context))

    def _fits_prefill_graph(self, size: int, scheduled: ScheduledRequests) -> bool:
        num_requests = len(scheduled.context) + len(scheduled.generation)
        padding_requests = 1 if scheduled.num_tokens < size else 0
        return num_requests + padding_requests <= self._prefill_metadata[size].max_num_requests

    def _replay(self, key: GraphKey, scheduled: ScheduledRequests, in_flight: PendingSamples | None) -> torch.Tensor:
        """The graph's static output, padding rows included."""
        batch = self._padded_batch(key, scheduled)
        self._write_static_inputs(key, batch)
        self._fill_in_flight(scheduled, in_flight)
        if key.plan is not None:
            self._prepare_graph_lora(key, batch)
        return self.graph_runner.replay(key)

    def _padded_batch(self, key: GraphKey, scheduled: ScheduledRequests) -> StepBatch:
        if key.is_prefill:
            return StepBatch.prefill(scheduled.context, scheduled.generation, key.batch_size)
        return StepBatch.decode(scheduled.generation, key.batch_size)

    def _metadata_of(self, key: GraphKey) -> AttentionMetadata:
        return (self._prefill_metadata if key.is_prefill else self._decode_metadata)[key.batch_size]

    def _write_static_inputs(self, key: GraphKey, batch: StepBatch) -> None:
        self._inputs.write(batch.input_ids, batch.position_ids)
        self._metadata_of(key).prepare(batch.attention)

    def _prepare_graph_lora(self, key: GraphKey, batch: StepBatch) -> LoraParams:
        assert self._lora_manager is not None
        return self._lora_manager.prepare(
            batch.adapters,
            batch.query_lens,
            num_padding_tokens=batch.num_padding_tokens,
            graph_plan=key.plan,
        )

    def _capture_graphs(self, plans_of: GraphPlans | None, args: TorchLlmArgs, progress: bool) -> None:
        if plans_of is None:
            plans_of = self._lora_manager.graph_plans if self._lora_manager is not None else _base_only
        runner = self.graph_runner
        # The largest first: the others share its scratch.
        for num_tokens in reversed(runner.prefill_token_buckets):
            most = min(args.max_batch_size, _MAX_PREFILL_GRAPH_REQUESTS)
            # A step without padding rows has no padding request, and with them it has fewer requests than rows.
            self._prefill_metadata[num_tokens] = self._eager_metadata.create_prefill_graph_metadata(
                num_tokens, min(num_tokens, most + 1)
            )
        for batch_size in runner.batch_sizes:
            self._decode_metadata[batch_size] = self._eager_metadata.create_cuda_graph_metadata(batch_size)
        keys = [GraphKey(size, plan) for size in runner.batch_sizes for plan in plans_of(size)]
        keys += [
            GraphKey(size, plan, is_prefill=True) for size in runner.prefill_token_buckets for plan in plans_of(size)
        ]
        runner.capture(keys, self._prepare_padding, self._forward_padding, progress=progress)

    def _prepare_padding(self, key: GraphKey) -> None:
        """Fill the static inputs of a graph with padding rows."""
        batch = self._padded_batch(key, ScheduledRequests())
        self._write_static_inputs(key, batch)
        self._graph_lora_params[key] = self._prepare_graph_lora(key, batch) if key.plan is not None else None

    def _forward_padding(self, key: GraphKey) -> torch.Tensor:
        """The forward to capture: hidden states [tokens, H] or logits [batch_size, vocab] of the static inputs."""
        input_ids, position_ids = self._inputs.views(key.batch_size)
        lora_params = self._graph_lora_params[key]
        hidden = self._model(input_ids, position_ids, self._metadata_of(key), lora_params)
        return hidden if key.is_prefill else self._model.compute_logits(hidden, lora_params)


def _base_only(num_rows: int) -> tuple[None]:
    return (None,)

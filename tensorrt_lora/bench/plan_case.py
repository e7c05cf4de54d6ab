"""One projection with its LoRA, in a chain of links that is what a step makes of it, for every plan.

A link is a small kernel that makes the projection's input, as a norm does in a model, the projection with its LoRA, and
the op that reads its output, in which some plans expand or add.
Everything is the engine's own: `Linear`, the slot tables, the batch, the dispatcher. So a link pays what a step pays:
launches, fork and join, and whether kernels may be launched early. Called by `PlanBench`; measures nothing.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from tensorrt_lora.bench.plan_consumer import plan_consumer
from tensorrt_lora.kernels.lora_batch import pages_for_rows
from tensorrt_lora.kernels.lora_delta import LoraDelta
from tensorrt_lora.kernels.rms_norm import rms_norm
from tensorrt_lora.kernels.streamed_linear_config import MAX_STREAMED_TOKENS
from tensorrt_lora.lora.adapter_slot_manager import Slot
from tensorrt_lora.lora.adapter_weights import AdapterWeights, LoraModuleWeights
from tensorrt_lora.lora.cuda_graph_lora_params import CudaGraphLoraParams
from tensorrt_lora.lora.layer import LoraLayer
from tensorrt_lora.lora.lora_params import LoraParams
from tensorrt_lora.lora.lora_plan import LoraPlan
from tensorrt_lora.lora.lora_plans import LoraPlans
from tensorrt_lora.lora.module_types import LoraModuleType
from tensorrt_lora.lora.pending_expand import PendingExpand
from tensorrt_lora.models.projection import Projection
from tensorrt_lora.modules.fp8_linear_method import Fp8LinearMethod
from tensorrt_lora.modules.linear import Linear
from tensorrt_lora.utils.multi_stream_utils import create_aux_stream, with_multi_stream

_ROTATED_BYTES = 256_000_000  # of weights, several times the second-level cache
_FEWEST_COPIES, _MOST_COPIES = 4, 64
_DTYPE = torch.bfloat16
_EPS = 1e-6

Link = Callable[[], Tensor]
"""Computes what the op behind one copy of the projection makes of its output."""


class PlanCase:
    """Copies of one projection that defeat the cache, and adapters for each.

    Before links are taken, `set_adapters` and `set_batch` say of what; links are valid until the next of either.

    Args:
        projection: of float8 with a scale per row, where its weights have one byte, or bfloat16.
        num_adapters: slots, all of them with an adapter.
        max_num_tokens: largest batch.
        copies: of the projection; None for as many as the cache asks for.
    """

    def __init__(
        self,
        projection: Projection,
        *,
        num_adapters: int,
        max_num_tokens: int,
        device: torch.device,
        copies: int | None = None,
    ) -> None:
        self._projection = projection
        self._is_gated = LoraModuleType.MLP_GATE in projection.module_types
        self._num_adapters = num_adapters
        self._device = device
        self._generator = torch.Generator(device).manual_seed(0)
        self._lora = LoraLayer(
            module_types=projection.module_types,
            hf_names=projection.hf_names,
            in_features=projection.in_features,
            output_sizes=projection.output_sizes,
        )
        enough = math.ceil(_ROTATED_BYTES / projection.weight_bytes)
        copies = copies or min(max(enough, _FEWEST_COPIES), _MOST_COPIES)
        self._linears = [self._make_linear() for _ in range(copies)]
        self._inputs = self._randn(max_num_tokens, projection.in_features)
        self._norm_weight = torch.ones(projection.in_features, dtype=_DTYPE, device=device)
        self._aux_stream = create_aux_stream(device)
        self._params: CudaGraphLoraParams | None = None
        self._x = self._inputs

    def set_adapters(self, rank: int) -> None:
        """Fill every slot of every copy with weights of their own memory; a slot's are alike in all copies."""
        self._params = None  # before as much is taken again
        pages = pages_for_rows(rank)
        params = CudaGraphLoraParams(
            {self._lora.key(copy): self._lora.shape for copy in range(len(self._linears))},
            num_slots=self._num_adapters,
            num_pages=self._num_adapters * pages,
            max_rank=rank,
            max_num_tokens=len(self._inputs),
            dtype=_DTYPE,
            device=self._device,
        )
        for slot in range(self._num_adapters):
            params.load_slot(Slot(slot, tuple(range(slot * pages, (slot + 1) * pages))), self._make_adapter(rank), {})
        self._params = params

    def set_batch(self, tokens: int, num_adapters: int) -> None:
        """So many rows, of which the adapters take turns."""
        assert self._params is not None and 0 < num_adapters <= self._num_adapters
        self._x = self._inputs[:tokens]
        self._params.write_batch(np.arange(tokens, dtype=np.int32) % num_adapters)

    def plans(self) -> list[LoraPlan]:
        """Those that differ for this projection and batch: the others would have to run as one of them."""
        assert self._params is not None
        base = self._linears[0].base(self._x)
        tables = self._params.layer_info[self._lora.key(0)]

        def runs(plan: LoraPlan) -> bool:
            if plan is LoraPlan.EXPAND_IN_CONSUMER:
                is_long = len(self._x) > MAX_STREAMED_TOKENS
                return self._is_gated and (is_long or base.can_fuse(tables, expand=False))
            return plan is not LoraPlan.FUSED or base.can_fuse(tables)

        return [plan for plan in LoraPlan if runs(plan)]

    def links(self, plan: LoraPlan | None) -> list[Link]:
        """A link for each copy; None is the base alone."""
        lora_params = None if plan is None else self._lora_params(plan)
        return [self._link(copy, lora_params) for copy in range(len(self._linears))]

    def _link(self, copy: int, lora_params: LoraParams | None) -> Link:
        linear, x = self._linears[copy], self._x
        # What follows reads its input as this projection does.
        consume = plan_consumer(self._projection, len(x), linear.input_quantization, self._device)

        def run() -> Tensor:
            normed, quantized = rms_norm(x, self._norm_weight, _EPS, linear.input_quantization)
            base = linear.base(normed, quantized)
            pending: PendingExpand | LoraDelta | None
            with with_multi_stream(True):
                if self._is_gated:
                    output, pending = self._lora.forward_deferred(base, lora_params, copy)
                else:
                    output, pending = self._lora.forward_with_delta(base, lora_params, copy)
            return consume(output, pending)

        return run

    def _lora_params(self, plan: LoraPlan) -> LoraParams:
        assert self._params is not None
        return LoraParams(
            cuda_graph_params=self._params,
            use_cuda_graph_mode=True,
            num_seqs=len(self._x),
            lora_aux_stream=self._aux_stream,
            lora_plans=LoraPlans(plan),
        )

    def _make_linear(self) -> Linear:
        projection = self._projection
        assert projection.itemsize in (1, 2)
        linear = Linear(
            in_features=projection.in_features,
            out_features=projection.shape.out_features,
            bias=False,
            dtype=_DTYPE,
            device=self._device,
            method=Fp8LinearMethod(static_activations=False, in_checkpoint=False) if projection.itemsize == 1 else None,
        )
        linear.set_weight(self._randn(linear.out_features, linear.in_features) * linear.in_features**-0.5)
        return linear

    def _make_adapter(self, rank: int) -> AdapterWeights:
        modules = {}
        for module_type, size in zip(self._projection.module_types, self._projection.output_sizes, strict=True):
            a = self._randn(rank, self._projection.in_features) * self._projection.in_features**-0.5
            weights = LoraModuleWeights(a, self._randn(rank, size), scale=rank**-0.5)
            modules.update({(copy, module_type): weights for copy in range(len(self._linears))})
        return AdapterWeights("random", "", modules)

    def _randn(self, *size: int) -> Tensor:
        return torch.randn(size, generator=self._generator, device=self._device, dtype=_DTYPE)

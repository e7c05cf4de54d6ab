"""LoRA inside a forward: the layer, and the one dispatcher that runs it beside the base projection.

`Attention`, `MLP`, `GatedMLP`, `Linear`, `Embedding` and `LMHead` own `LoraLayer`s and call
`LoraLayer.forward_with_base`, or a form of it that leaves the end to the next op. Which adapter a row uses, where
weights live and whether a second stream exists all come in through `lora_params`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from tensorrt_lora.kernels.linear import linear
from tensorrt_lora.kernels.linear_weight import LinearWeight
from tensorrt_lora.kernels.lora_batch import LoraBatch, LoraTables
from tensorrt_lora.kernels.lora_delta import LoraDelta
from tensorrt_lora.kernels.lora_linear import can_fuse, linear_and_shrink, lora_linear
from tensorrt_lora.kernels.quantized_activation import QuantizedActivation
from tensorrt_lora.kernels.streamed_linear_config import MAX_STREAMED_TOKENS
from tensorrt_lora.lora.lora_branch import LoraBranch
from tensorrt_lora.lora.lora_layer_key import LoraLayerKey, LoraLayerShape
from tensorrt_lora.lora.lora_params import LoraParams
from tensorrt_lora.lora.lora_plan import LoraPlan
from tensorrt_lora.lora.lora_plans import ProjectionShape
from tensorrt_lora.lora.module_types import LoraModuleType
from tensorrt_lora.lora.pending_expand import PendingExpand
from tensorrt_lora.utils.multi_stream_utils import (
    create_event_pair,
    do_multi_stream,
    maybe_execute_in_parallel,
)


@dataclass(slots=True)
class BaseProjection:
    """A base projection bound to its input: callable as `forward_with_base` wants it, and open to a fused plan.

    Each call returns a tensor of its own, so a plan may add into it in place.
    """

    x: torch.Tensor  # [..., in]
    weight: LinearWeight

    def base_input(self) -> torch.Tensor | QuantizedActivation:
        """`x` as the weight multiplies it: [tokens, in]."""
        return self.x.reshape(-1, self.x.shape[-1])

    def __call__(self) -> torch.Tensor:
        return linear(self.base_input(), self.weight, self.x.dtype).unflatten(0, self.x.shape[:-1])

    def can_fuse(self, tables: LoraTables, *, expand: bool = True) -> bool:
        """Whether one launch serves this projection and its LoRA, with or without the expand."""
        return self.x.is_contiguous() and can_fuse(self.x.shape[:-1].numel(), self.weight, tables, expand=expand)

    def with_lora(self, tables: LoraTables, batch: LoraBatch) -> torch.Tensor:
        """Base and LoRA in one launch."""
        rows = self.x.view(-1, self.x.shape[-1])
        return lora_linear(rows, self.base_input(), self.weight, tables, batch).view(*self.x.shape[:-1], -1)

    def with_shrink(self, tables: LoraTables, batch: LoraBatch) -> tuple[torch.Tensor, PendingExpand]:
        """Base and shrink in one launch: the base output [tokens, out], and what is to be added to it."""
        rows = self.x.view(-1, self.x.shape[-1])
        output, h = linear_and_shrink(rows, self.base_input(), self.weight, tables, batch)
        return output, PendingExpand(h, tables, batch)


@dataclass(slots=True)
class BaseEmbedding:
    """A base embedding bound to its token ids; what `BaseProjection` is to a linear layer."""

    x: torch.Tensor  # [T] int
    weight: torch.Tensor  # [vocab, hidden]

    def __call__(self) -> torch.Tensor:
        return functional.embedding(self.x, self.weight)


class LoraLayer(nn.Module):
    """The LoRA branch of one or more layers that read the same input. Holds no weights.

    Args:
        module_types: the adapted layers, in the order of their outputs.
        hf_names: their names below the parent module in a Hugging Face checkpoint ("q_proj"); "" where the parent is
            the adapted layer itself.
        in_features: width of the shared input; of an embedding, the vocabulary.
        output_sizes: width of each output; the layer's output is their concatenation.
    """

    def __init__(
        self,
        *,
        module_types: tuple[LoraModuleType, ...],
        hf_names: tuple[str, ...],
        in_features: int,
        output_sizes: tuple[int, ...],
    ) -> None:
        super().__init__()
        assert len(module_types) == len(hf_names) == len(output_sizes) > 0
        self.module_types = module_types
        self.hf_names = hf_names
        self.in_features = in_features
        self.output_sizes = output_sizes
        self._par_events: tuple[torch.cuda.Event, torch.cuda.Event] | None = None

    @property
    def shape(self) -> LoraLayerShape:
        return LoraLayerShape(self.in_features, self.output_sizes)

    def key(self, layer_idx: int) -> LoraLayerKey:
        return LoraLayerKey(layer_idx, self.module_types)

    def forward(self, x: torch.Tensor, lora_params: LoraParams, layer_idx: int) -> torch.Tensor:
        """The LoRA delta of every row: [..., in] -> [..., sum(output_sizes)], zeros for base rows.

        It is all that is added to the base output y, but for the (g - 1) y of DoRA.
        """
        params = lora_params["cuda_graph_params"]
        branch = LoraBranch(x, params.layer_info[self.key(layer_idx)], params.batch, LoraPlan.BOTH_BESIDE)
        assert branch.delta is not None
        branch.delta.zero_()
        branch.run()
        return branch.delta.view(*branch.batch_shape, -1)

    @staticmethod
    def forward_with_base(
        base_forward: Callable[[], torch.Tensor],
        lora_layers: tuple["LoraLayer", ...],
        x: torch.Tensor,
        lora_params: LoraParams | None,
        layer_idx: int,
    ) -> torch.Tensor:
        """The base projection plus every targeted LoRA layer, the two side by side where a second stream allows it.

        They run in parallel only if a layer of the tuple is targeted, `lora_params` carries an auxiliary stream, the
        thread is inside `with_multi_stream(True)` and nothing is compiling; otherwise one after the other, with the
        same bits in the result.

        Args:
            base_forward: computes the base output [..., sum(output_sizes)]; the result of a `BaseProjection` or
                `BaseEmbedding` is changed in place, that of any other callable may be aliased and is left as it is.
            lora_layers: LoRA layers that read `x` and change the whole output.
            x: [..., in], the unquantised input; for an embedding token ids [...].
            lora_params: None when no row of the batch has an adapter.
            layer_idx: index of the decoder layer, or OUTSIDE_LAYERS.
        """
        if lora_params is None:
            return base_forward()
        params = lora_params["cuda_graph_params"]
        keys = [layer.key(layer_idx) for layer in lora_layers]
        targeted = [params.layer_info[key] for key in keys if key in params.layer_info]
        if not targeted:
            return base_forward()

        # Outside `with_multi_stream` nothing overlaps, and a delta of its own would only cost memory.
        plan = LoraPlan.SEQUENTIAL
        if do_multi_stream():
            plan = lora_params["lora_plans"].plan_for(_shape_of(base_forward, targeted[0]))
        if plan.shares_base_launch:
            if isinstance(base_forward, BaseProjection) and len(targeted) == 1 and base_forward.can_fuse(targeted[0]):
                return base_forward.with_lora(targeted[0], params.batch)
            plan = plan.in_launches_of_its_own
        # Allocated before the fork: what crosses streams belongs to the main stream.
        branches = [LoraBranch(x, tables, params.batch, plan) for tables in targeted]
        output = lora_layers[0]._run_beside(base_forward, branches, lora_params, plan)
        if not isinstance(base_forward, BaseProjection | BaseEmbedding):
            output = output.clone()
        for branch in branches:
            branch.add_to(output)
        return output

    def forward_with_delta(
        self, base: BaseProjection, lora_params: LoraParams | None, layer_idx: int
    ) -> tuple[torch.Tensor, LoraDelta | None]:
        """`forward_with_base` of this layer alone, for a caller whose next op can add.

        Args:
            base: of an input [T, in].

        Returns:
            The base output [T, out] and what that op has yet to add, where the plan leaves a delta; else the whole
            output and None.
        """
        found = self._find_plan(base, lora_params, layer_idx)
        if lora_params is None or found is None or not found[1].leaves_delta:
            return LoraLayer.forward_with_base(base, (self,), base.x, lora_params, layer_idx), None
        tables, batch = found[0], lora_params["cuda_graph_params"].batch
        branch = LoraBranch(base.x, tables, batch, LoraPlan.ADD_IN_CONSUMER)
        output = self._run_beside(base, [branch], lora_params, LoraPlan.ADD_IN_CONSUMER)
        assert branch.delta is not None
        return output, LoraDelta(branch.delta, tables, batch)

    def forward_deferred(
        self, base: BaseProjection, lora_params: LoraParams | None, layer_idx: int
    ) -> tuple[torch.Tensor, PendingExpand | LoraDelta | None]:
        """`forward_with_delta`, for a caller whose next op can expand, too: `lora_silu_and_mul`.

        Returns:
            The base output [T, out] and what that op has yet to add, where the plan leaves it to the op: h @ B, or a
            delta; else the whole output and None.
        """
        found = self._find_plan(base, lora_params, layer_idx)
        if lora_params is None or found is None or found[1] is not LoraPlan.EXPAND_IN_CONSUMER:
            return self.forward_with_delta(base, lora_params, layer_idx)
        tables, plan = found
        batch = lora_params["cuda_graph_params"].batch
        if base.can_fuse(tables, expand=False):
            return base.with_shrink(tables, batch)
        if base.x.shape[0] <= MAX_STREAMED_TOKENS:  # sums of a few tokens are in slices, too many for each tile to read
            return LoraLayer.forward_with_base(base, (self,), base.x, lora_params, layer_idx), None
        branch = LoraBranch(base.x, tables, batch, plan)
        output = self._run_beside(base, [branch], lora_params, plan)
        return output, PendingExpand(branch.h, tables, batch)

    def _find_plan(
        self, base: BaseProjection, lora_params: LoraParams | None, layer_idx: int
    ) -> tuple[LoraTables, LoraPlan] | None:
        """This layer's tables and plan; None where it is not targeted, or nothing but SEQUENTIAL runs."""
        if lora_params is None or not do_multi_stream():
            return None
        tables = lora_params["cuda_graph_params"].layer_info.get(self.key(layer_idx))
        return None if tables is None else (tables, lora_params["lora_plans"].plan_for(_shape_of(base, tables)))

    def _run_beside(
        self,
        base_forward: Callable[[], torch.Tensor],
        branches: Sequence[LoraBranch],
        lora_params: LoraParams,
        plan: LoraPlan,
    ) -> torch.Tensor:
        """The base output, once the branches have run, too: beside it, if the plan wants that and a stream is there."""

        def run_branches() -> None:
            for branch in branches:
                branch.run()

        aux_stream = None if plan is LoraPlan.SEQUENTIAL else lora_params["lora_aux_stream"]
        event0, event1 = self._parallel_events() if aux_stream is not None else (None, None)
        output, _ = maybe_execute_in_parallel(
            base_forward, run_branches, event0, event1, aux_stream, disable_on_compile=True
        )
        return output

    def _parallel_events(self) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        if self._par_events is None:
            self._par_events = create_event_pair()
        return self._par_events


def _shape_of(base_forward: Callable[[], torch.Tensor], tables: LoraTables) -> ProjectionShape:
    stored = base_forward.weight.values if isinstance(base_forward, BaseProjection) else tables.a_pool
    return ProjectionShape(tables.a_pool.shape[2], tables.b_pool.shape[1], stored.itemsize)

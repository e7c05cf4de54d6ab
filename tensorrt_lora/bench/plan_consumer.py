"""The op of a decoder layer that reads a projection's output next: where a plan may leave the end of LoRA to it.

Called in every link of a `PlanCase`, with every plan and without LoRA: what an op costs anyway is on both sides, and
what a plan makes it do on one. Behind q, k and v it is the rotation, not attention, whose time depends on lengths.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from tensorrt_lora.kernels.lora_delta import LoraDelta
from tensorrt_lora.kernels.qk_norm_rope import KvCacheWrite, qk_norm_rope
from tensorrt_lora.kernels.quantized_activation import ActivationQuantization
from tensorrt_lora.kernels.rms_norm import fused_add_rms_norm
from tensorrt_lora.lora.module_types import LoraModuleType
from tensorrt_lora.lora.pending_expand import PendingExpand
from tensorrt_lora.models.projection import Projection
from tensorrt_lora.modules.gated_mlp import silu_and_mul_with

_DTYPE = torch.bfloat16
_EPS = 1e-6
_HEAD_DIM = 128
_PAGE_SIZE = 16

PlanConsumer = Callable[[Tensor, PendingExpand | LoraDelta | None], Tensor]
"""Finishes a base output [T, out], which may be overwritten, and what is still to be added to it."""


def plan_consumer(
    projection: Projection, tokens: int, quantization: ActivationQuantization | None, device: torch.device
) -> PlanConsumer:
    """The op behind a projection for steps of so many tokens.

    Args:
        quantization: of the projection that comes after the op.
    """
    if LoraModuleType.MLP_GATE in projection.module_types:
        return _silu_consumer(quantization)
    if len(projection.output_sizes) == 1:
        return _norm_consumer(projection.output_sizes[0], tokens, quantization, device)
    return _rotation_consumer(projection.output_sizes, tokens, device)


def _silu_consumer(quantization: ActivationQuantization | None) -> PlanConsumer:
    def consume(output: Tensor, pending: PendingExpand | LoraDelta | None) -> Tensor:
        product, _ = silu_and_mul_with(pending, output, quantization)
        return product

    return consume


def _norm_consumer(
    width: int, tokens: int, quantization: ActivationQuantization | None, device: torch.device
) -> PlanConsumer:
    weight = torch.ones(width, dtype=_DTYPE, device=device)
    residual = torch.zeros((tokens, width), dtype=_DTYPE, device=device)

    def consume(output: Tensor, pending: PendingExpand | LoraDelta | None) -> Tensor:
        assert not isinstance(pending, PendingExpand)
        fused_add_rms_norm(output, residual, weight, _EPS, quantization, pending)
        return output

    return consume


def _rotation_consumer(output_sizes: tuple[int, ...], tokens: int, device: torch.device) -> PlanConsumer:
    head_dim = math.gcd(_HEAD_DIM, *output_sizes)
    positions = torch.zeros(tokens, dtype=torch.int64, device=device)
    angles = torch.ones((1, head_dim), device=device)
    weight = torch.ones(head_dim, dtype=_DTYPE, device=device)
    shape = (-(-tokens // _PAGE_SIZE), 2, _PAGE_SIZE, output_sizes[-1] // head_dim, head_dim)
    cache = torch.zeros(shape, dtype=_DTYPE, device=device)
    cache_slots = torch.arange(tokens, device=device)

    def consume(output: Tensor, pending: PendingExpand | LoraDelta | None) -> Tensor:
        assert not isinstance(pending, PendingExpand)
        q, k, v = output.split(output_sizes, dim=-1)
        write = KvCacheWrite(v, cache, cache_slots)
        qk_norm_rope(q, k, positions, angles, head_dim, weight, weight, _EPS, write, pending)
        return output[:, : -output_sizes[-1]]

    return consume

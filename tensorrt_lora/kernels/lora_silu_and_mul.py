"""silu(gate) * up of a base output without LoRA, whose B h is added as a kernel reads it; quantised in passing.

Called by `modules/gated_mlp.py`, where the plan says so, with what a shrink left. The result has the bits of
`lora_expand` and `silu_and_mul` one after the other. There are two kernels: `lora_silu_and_mul_decode` for the h of
`linear_and_shrink`, few tokens, and `lora_silu_and_mul_prefill` for that of `lora_shrink`, many.
"""

from dataclasses import replace

import torch
from torch import Tensor

from tensorrt_lora.kernels.activation import silu_and_mul_reference_into
from tensorrt_lora.kernels.dispatch import use_triton
from tensorrt_lora.kernels.lora_batch import LoraBatch, LoraTables
from tensorrt_lora.kernels.lora_expand import lora_expand_reference
from tensorrt_lora.kernels.lora_silu_and_mul_decode import lora_silu_and_mul_decode
from tensorrt_lora.kernels.lora_silu_and_mul_prefill import lora_silu_and_mul_prefill
from tensorrt_lora.kernels.quantized_activation import ActivationQuantization, QuantizedActivation


def lora_silu_and_mul(
    gate_up: Tensor,
    h: Tensor,
    tables: LoraTables,
    batch: LoraBatch,
    quantization: ActivationQuantization | None = None,
) -> tuple[Tensor, QuantizedActivation | None]:
    """What `silu_and_mul` returns for y + (g - 1) y + round(g h B + bias), y being `gate_up`; that is left as it is.

    Args:
        gate_up: [T, 2 * N] (gate, then up; rows may be strided), the tables' dtype.
        h: contiguous; what a shrink leaves unwritten is not read. Either of `linear_and_shrink`, [2, T, max_rank] in
            that dtype: scaled, and on CUDA with a batch in tiles for decoding. Or of `lora_shrink`, [splits, 2, T,
            max_rank] in float32: slices, which are summed, scaled and rounded here.
    """
    assert len(set(tables.output_sizes)) == 1 and gate_up.shape == (len(batch.token_slots), sum(tables.output_sizes))
    assert h.shape[-3:] == (2, gate_up.shape[0], tables.max_rank) and h.is_contiguous()
    assert h.dtype == (gate_up.dtype if h.dim() == 3 else torch.float32)
    out = gate_up.new_empty((gate_up.shape[0], tables.output_sizes[0]))
    quantized = None if quantization is None else quantization.empty(out)
    compute = lora_silu_and_mul_triton if use_triton(gate_up) else lora_silu_and_mul_reference_into
    compute(gate_up, h, tables, batch, out, quantization, quantized)
    return out, quantized


def lora_silu_and_mul_reference_into(
    gate_up: Tensor,
    h: Tensor,
    tables: LoraTables,
    batch: LoraBatch,
    out: Tensor,
    quantization: ActivationQuantization | None,
    quantized: QuantizedActivation | None,
) -> None:
    """The op in torch: fills `out` [T, N] and `quantized`."""
    with_lora = gate_up.clone()
    if h.dim() == 3:
        h = h[None].to(torch.promote_types(h.dtype, torch.float32))
        tables = replace(tables, scale=torch.ones_like(tables.scale))
    lora_expand_reference(h, tables, batch, with_lora, accumulate=True)
    silu_and_mul_reference_into(with_lora, out, quantization, quantized)


def lora_silu_and_mul_triton(
    gate_up: Tensor,
    h: Tensor,
    tables: LoraTables,
    batch: LoraBatch,
    out: Tensor,
    quantization: ActivationQuantization | None,
    quantized: QuantizedActivation | None,
) -> None:
    """The same as a Triton kernel; a whole token's scale takes a second one, as in `silu_and_mul`."""
    assert gate_up.stride(1) == 1 and out.is_contiguous()
    if gate_up.shape[0] > 0:
        launch = lora_silu_and_mul_decode if h.dim() == 3 else lora_silu_and_mul_prefill
        launch(gate_up, h, tables, batch, out, quantization, quantized)

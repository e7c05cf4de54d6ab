"""Elementwise activations of the feed-forward blocks, with the quantisation that a float8 projection wants behind one.

Called by `GatedMLP` and `MLP`. Rounded, as Hugging Face's models do, to the input's dtype: silu(gate), its product with
up. The quantisation reads that product, as if it were an op of its own; and the op reads gate and up with their LoRA
delta, if that is still to be added, rounded as by `lora_add`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from tensorrt_lora.kernels.dispatch import use_triton
from tensorrt_lora.kernels.fp8_quantize import PART_COLUMNS, PART_WARPS, quantize_by_maxima, quantize_reference
from tensorrt_lora.kernels.lora_delta import (
    DELTA_NOT_SPECIALIZED,
    DELTA_SINGLE_VALUES,
    LoraDelta,
    add_delta,
    delta_arguments,
    load_adapter,
    load_delta,
)
from tensorrt_lora.kernels.programmatic_launch import launch_options, programmatic_launch
from tensorrt_lora.kernels.quantized_activation import (
    ActivationQuantization,
    QuantizedActivation,
    divide_to_fp8,
    largest_magnitude,
    store_fp8_groups,
)


def silu_and_mul(
    gate_up: Tensor, quantization: ActivationQuantization | None = None, delta: LoraDelta | None = None
) -> tuple[Tensor, QuantizedActivation | None]:
    """silu(gate) * up: [T, 2 * N] (gate, then up; rows may be strided). Source: Shazeer, "GLU Variants" (2020).

    With `delta`, of these two modules, gate and up are first what `lora_add` makes of them; `gate_up` stays as it is.

    Returns:
        A new tensor [T, N]; and the same quantised, if that is asked for.
    """
    assert delta is None or (delta.values.shape == gate_up.shape and len(set(delta.tables.output_sizes)) == 1)
    out = gate_up.new_empty((gate_up.shape[0], gate_up.shape[1] // 2))
    quantized = None if quantization is None else quantization.empty(out)
    compute = silu_and_mul_triton if use_triton(gate_up) else silu_and_mul_reference_into
    compute(gate_up, out, quantization, quantized, delta)
    return out, quantized


def squared_relu(x: Tensor) -> Tensor:
    """relu(x)^2, any shape. Source: So et al., "Primer" (2021)."""
    return functional.relu(x).square()


def silu_and_mul_reference(gate_up: Tensor) -> Tensor:
    """The product in torch."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate) * up


def silu_and_mul_reference_into(
    gate_up: Tensor,
    out: Tensor,
    quantization: ActivationQuantization | None,
    quantized: QuantizedActivation | None,
    delta: LoraDelta | None = None,
) -> None:
    """The op in torch: fills `out` [T, N] and `quantized`."""
    out.copy_(silu_and_mul_reference(gate_up if delta is None else delta.added_to(gate_up)))
    if quantization is not None and quantized is not None:
        quantize_reference(out, quantized.values, quantized.scale, quantization.static_scale)


def silu_and_mul_triton(
    gate_up: Tensor,
    out: Tensor,
    quantization: ActivationQuantization | None,
    quantized: QuantizedActivation | None,
    delta: LoraDelta | None = None,
) -> None:
    """The same as a Triton kernel; a whole token's scale takes a second one, once the first knows the maxima."""
    tokens, width = out.shape
    assert gate_up.stride(1) == 1 and out.is_contiguous()
    if tokens == 0:
        return
    parts = triton.cdiv(width, PART_COLUMNS)
    granularity = "" if quantization is None else quantization.granularity(width)
    maxima = out.new_empty((tokens, parts), dtype=torch.float32) if granularity == "token" else None
    # A tensor stands in for what the kernel does not read.
    target = QuantizedActivation(out, out) if quantized is None else quantized
    static_scale = None if quantization is None else quantization.static_scale
    programmatic = programmatic_launch(gate_up)
    _silu_and_mul_kernel[(tokens, parts)](
        gate_up,
        out,
        target.values,
        target.scale if maxima is None else maxima,
        target.scale if static_scale is None else static_scale,
        gate_up.stride(0),
        target.scale.stride(1),
        *delta_arguments(delta, stand_in=gate_up),
        WIDTH=width,
        HAS_DELTA=delta is not None,
        QUANTIZE=granularity,
        BLOCK=PART_COLUMNS,
        PROGRAMMATIC=programmatic,
        num_warps=PART_WARPS,
        **launch_options(programmatic),
    )
    if maxima is not None:
        quantize_by_maxima(out, maxima, target)


@triton.jit(
    do_not_specialize=["scale_stride", *DELTA_NOT_SPECIALIZED],
    do_not_specialize_on_alignment=["scale", "static_scale", *DELTA_SINGLE_VALUES],
)
def _silu_and_mul_kernel(
    gate_up,
    out,
    values,
    scale,
    static_scale,
    gate_up_stride,
    scale_stride,
    delta,
    b_pool,
    page_table,
    rank,
    extras,
    token_slots,
    num_slots,
    b_row_stride,
    page_stride,
    WIDTH: tl.constexpr,
    HAS_DELTA: tl.constexpr,
    QUANTIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    PROGRAMMATIC: tl.constexpr,
):
    """One program: BLOCK columns of one token. With a scale for the whole token, `scale` takes the parts' maxima."""
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    column = part * BLOCK + tl.arange(0, BLOCK)
    live = column < WIDTH
    if QUANTIZE == "static":
        row_scale = tl.load(static_scale)
    if HAS_DELTA:
        gate_adapter = load_adapter(token_slots, page_table, rank, extras, token, 0, num_slots, page_stride)
        up_adapter = load_adapter(token_slots, page_table, rank, extras, token, 1, num_slots, page_stride)
    if PROGRAMMATIC:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()

    dtype: tl.constexpr = out.dtype.element_ty
    row = gate_up + token * gate_up_stride + column
    gate = tl.load(row, mask=live, other=0.0)
    up = tl.load(row + WIDTH, mask=live, other=0.0)
    if HAS_DELTA:
        columns = delta + token * 2 * WIDTH + column
        gate_delta = load_delta(columns, live, gate_adapter)
        up_delta = load_delta(columns + WIDTH, live, up_adapter)
        gate = add_delta(gate, gate_delta, live, b_pool + column, b_row_stride, gate_adapter)
        up = add_delta(up, up_delta, live, b_pool + WIDTH + column, b_row_stride, up_adapter)
    product = silu_product(gate.to(tl.float32), up.to(tl.float32), dtype)
    tl.store(out + token * WIDTH + column, product, mask=live)

    if QUANTIZE == "token":
        tl.store(scale + token * tl.num_programs(1) + part, largest_magnitude(product.to(tl.float32), axis=0))
    elif QUANTIZE == "group":
        first_group = part * (BLOCK // 128)
        store_fp8_groups(product, column, first_group, values + token * WIDTH, scale + token, scale_stride, WIDTH)
    elif QUANTIZE == "static":
        quantized = divide_to_fp8(product, row_scale, values.dtype.element_ty, BOUNDED=False)
        tl.store(values + token * WIDTH + column, quantized, mask=live)
        tl.store(scale + token, row_scale, mask=part == 0)


@triton.jit
def silu_product(gate, up, dtype: tl.constexpr):
    """silu(gate) * up of float32 values, rounded to `dtype` as the op rounds."""
    silu = (gate / (1.0 + tl.exp(-gate))).to(dtype).to(tl.float32)
    return (silu * up).to(dtype)

"""y + (g - 1) y + delta for every row's own adapter: the end of a LoRA branch that ran beside its base projection.

Called by `lora/lora_branch.py` after the join, with the delta that `lora_expand` stored. g is DoRA's; rows of other
adapters only take the addition, and base rows nothing.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tensorrt_lora.kernels.dispatch import use_triton
from tensorrt_lora.kernels.lora_batch import BIAS_ROW, GAIN_ROW, RANK_PAGE, LoraBatch, LoraTables
from tensorrt_lora.kernels.programmatic_launch import launch_options, programmatic_launch

BLOCK_N = 512
NUM_WARPS = 4


def lora_add(delta: Tensor, tables: LoraTables, batch: LoraBatch, out: Tensor) -> None:
    """out[t] = round(out[t] + (g - 1) * out[t] + delta[t]), computed in float32.

    Args:
        delta: [T, sum(output_sizes)], the tables' dtype, contiguous: what `lora_expand` stored. Only rows of adapters,
            in columns of the modules that these touch, are read.
        out: like `delta`, rows may be strided; the base output, of which the same parts are changed.
    """
    assert out.shape == delta.shape == (batch.token_slots.shape[0], tables.b_pool.shape[1])
    assert out.stride(-1) == 1 and delta.is_contiguous()
    if use_triton(out):
        _lora_add_triton(delta, tables, batch, out)
    else:
        lora_add_reference(delta, tables, batch, out)


def lora_add_reference(delta: Tensor, tables: LoraTables, batch: LoraBatch, out: Tensor) -> None:
    """The same in torch."""
    ranks, flags = tables.rank.T.tolist(), tables.extras.T.tolist()
    for slot, tokens in batch.segments():
        for module, columns in enumerate(tables.column_slices):
            if ranks[slot][module] or flags[slot][module]:
                _, gain = tables.extra_rows(slot, module)
                module_out = out[:, columns]
                module_out[tokens] = add_delta(module_out[tokens], delta[tokens, columns], gain)


def add_delta(y: Tensor, delta: Tensor, gain: Tensor | None) -> Tensor:
    """y + gain * y + delta in float32 or wider, rounded to y's dtype: [n, out] with `gain` [out]."""
    if gain is None:
        return y + delta
    wide = y.to(torch.promote_types(y.dtype, torch.float32))
    return (torch.addcmul(wide, wide, gain.to(wide.dtype)) + delta.to(wide.dtype)).to(y.dtype)


def _lora_add_triton(delta: Tensor, tables: LoraTables, batch: LoraBatch, out: Tensor) -> None:
    tokens, width = out.shape
    if tokens == 0:
        return
    size0, size1, *_ = (*tables.output_sizes, 0, 0)
    programmatic = programmatic_launch(out)
    _lora_add_kernel[tokens, triton.cdiv(width, BLOCK_N)](
        delta,
        tables.b_pool,
        out,
        tables.page_table,
        tables.rank,
        tables.extras,
        batch.token_slots,
        tables.rank.shape[1],
        size0,
        size0 + size1,
        width,
        tables.b_pool.stride(0),
        out.stride(0),
        tables.page_table.stride(0),
        PAGE=RANK_PAGE,
        BIAS=BIAS_ROW,
        GAIN=GAIN_ROW,
        BLOCK_N=BLOCK_N,
        PROGRAMMATIC=programmatic,
        num_warps=NUM_WARPS,
        **launch_options(programmatic),
    )


@triton.jit(
    do_not_specialize=["num_slots", "page_stride"],
    do_not_specialize_on_alignment=["page_table", "rank", "extras", "token_slots"],
)
def _lora_add_kernel(
    delta,
    b_pool,
    out,
    page_table,
    rank,
    extras,
    token_slots,
    num_slots,
    end0,
    end1,
    width,
    b_row_stride,
    out_stride,
    page_stride,
    PAGE: tl.constexpr,
    BIAS: tl.constexpr,
    GAIN: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PROGRAMMATIC: tl.constexpr,
):
    """One program: BLOCK_N columns of one row, of whichever modules they are."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(token_slots + token)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    in_row = (column < width) & (slot >= 0)
    module = (column >= end0).to(tl.int32) + (column >= end1).to(tl.int32)
    module_rank = tl.load(rank + module * num_slots + slot, mask=in_row, other=0)
    flags = tl.load(extras + module * num_slots + slot, mask=in_row, other=0)
    touched = (module_rank > 0) | (flags > 0)
    has_gain = (flags & GAIN) != 0
    gain_row = module_rank + (flags & BIAS) // BIAS
    pages = page_table + tl.maximum(slot, 0) * page_stride
    gain = load_row(b_pool + column, pages, gain_row, has_gain, b_row_stride, PAGE=PAGE)
    if PROGRAMMATIC:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    if slot < 0:
        return
    out_row = out + token * out_stride + column
    y = tl.load(out_row, mask=touched, other=0.0).to(tl.float32)
    added = tl.load(delta + token * width + column, mask=touched, other=0.0).to(tl.float32)
    y = tl.where(flags > 0, tl.fma(y, gain, y), y)  # on the same condition, and by the same fma, as in the expand
    tl.store(out_row, (y + added).to(out.dtype.element_ty), mask=touched)


@triton.jit
def load_row(b_columns, pages, row, mask, b_row_stride, PAGE: tl.constexpr):
    """Row `row` of a slot's pages at `b_columns` of the pool's first row, in float32; zeros where `mask` is not set."""
    page = tl.load(pages + row // PAGE, mask=mask, other=0)
    pool_row = (page * PAGE + row % PAGE).to(tl.int64)
    return tl.load(b_columns + pool_row * b_row_stride, mask=mask, other=0.0).to(tl.float32)

"""The delta of a LoRA branch that the op behind its base projection adds as it reads the base output.

Made by `lora/layer.py` after the join of the two streams, in place of `lora_add`; taken by the ops that follow
projections: `fused_add_rms_norm`, `silu_and_mul`, `qk_norm_rope`, `fused_decode_attention`. Their results have the bits
that they would have behind `lora_add`. A launch is saved: about a microsecond for each projection of a decode step.
"""

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from tensorrt_lora.kernels.lora_add import lora_add_reference
from tensorrt_lora.kernels.lora_batch import BIAS_ROW, GAIN_ROW, RANK_PAGE, LoraBatch, LoraTables


@dataclass(frozen=True, slots=True)
class LoraDelta:
    """What is still to be added to a base output [T, sum(output_sizes)]."""

    values: Tensor
    """[T, sum(output_sizes)], the tables' dtype, contiguous: what `lora_expand` stored. Only rows of adapters, in
    columns of the modules that these touch, are read."""
    tables: LoraTables
    batch: LoraBatch

    def added_to(self, output: Tensor) -> Tensor:
        """`output` [T, sum(output_sizes)] with the delta, as a new tensor, in torch: for references."""
        total = output.clone()
        lora_add_reference(self.values, self.tables, self.batch, total)
        return total


# Kernels read globals of this type alone.
_PAGE = tl.constexpr(RANK_PAGE)
_BIAS = tl.constexpr(BIAS_ROW)
_GAIN = tl.constexpr(GAIN_ROW)

# Of the kernel arguments below, for `triton.jit`: single values, and integers of which the kernels need nothing.
DELTA_SINGLE_VALUES = ["page_table", "rank", "extras", "token_slots"]
DELTA_NOT_SPECIALIZED = ["num_slots", "page_stride"]


def delta_arguments(delta: LoraDelta | None, stand_in: Tensor) -> tuple[Tensor | int, ...]:
    """A kernel's (delta, b_pool, page_table, rank, extras, token_slots, num_slots, b_row_stride, page_stride).

    Without a delta a tensor stands in for what the kernel does not read.
    """
    if delta is None:
        return (*[stand_in] * 6, 0, 0, 0)
    tables = delta.tables
    return (
        delta.values,
        tables.b_pool,
        tables.page_table,
        tables.rank,
        tables.extras,
        delta.batch.token_slots,
        tables.rank.shape[1],
        tables.b_pool.stride(0),
        tables.page_table.stride(0),
    )


@triton.jit
def load_adapter(token_slots, page_table, rank, extras, token, module, num_slots, page_stride):
    """A token's adapter in a module: (its row of the page table, rank, extras). Valid before the wait.

    A base row has one that touches nothing.
    """
    slot = tl.load(token_slots + token)
    has_adapter = slot >= 0
    slot_rank = tl.load(rank + module * num_slots + slot, mask=has_adapter, other=0)
    flags = tl.load(extras + module * num_slots + slot, mask=has_adapter, other=0)
    return page_table + tl.maximum(slot, 0) * page_stride, slot_rank, flags


@triton.jit
def load_delta(columns, live, adapter):
    """The delta at `columns` where it is `live` and the module is touched, whatever is there elsewhere.

    There it is -0.0, the one number that changes none to which it is added.
    """
    _, slot_rank, flags = adapter
    minus_zero = tl.zeros(live.shape, columns.dtype.element_ty) * -1.0  # constants of Triton lose the sign
    return tl.load(columns, mask=live & ((slot_rank > 0) | (flags > 0)), other=minus_zero)


@triton.jit
def add_delta(y, delta, live, b_columns, b_row_stride, adapter):
    """Values `y` of one token in one module with their `delta`, rounded as by `lora_add`; as they are if untouched.

    Without extras 16-bit values are added as such, two at a time: the sum is rounded as one in float32 would be.

    Args:
        y: of any shape, in the output's dtype.
        delta: of that shape, by `load_delta`.
        b_columns: pointers to the columns of y in the first row of `b_pool`.
    """
    pages, slot_rank, flags = adapter
    if flags > 0:
        has_gain = (flags & _GAIN) != 0
        gain_row = slot_rank + (flags & _BIAS) // _BIAS
        page = tl.load(pages + gain_row // _PAGE, mask=has_gain, other=0)
        row = (page * _PAGE + gain_row % _PAGE).to(tl.int64)
        gain = tl.load(b_columns + row * b_row_stride, mask=live & has_gain, other=0.0).to(tl.float32)
        wide = y.to(tl.float32)
        total = (tl.fma(wide, gain, wide) + delta.to(tl.float32)).to(y.dtype)
    else:
        total = y + delta
    return total

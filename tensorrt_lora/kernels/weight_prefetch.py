"""Asking for weights ahead of their use, so that memory is busy while small kernels run.

Used inside kernels that stream a weight: `streamed_linear` and `lora_linear`. A step alternates between projections,
which are bound by memory, and norms, attention and activations, which leave it idle; what a projection's last programs
ask for arrives in the second-level cache meanwhile.
"""

import os
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from tensorrt_lora.kernels.streamed_linear_config import StreamedLinearConfig

NEXT_BYTES = int(os.environ.get("TENSORRT_LORA_PREFETCH_MIB", "24")) * 2**20
"""Asked for of the next weight: by default half of an H200's second-level cache, 6 us of its memory. 0: nothing."""

_PREFETCHING_PROGRAMS = 264  # the last wave of a launch: two programs for each SM
_SEGMENT_ALIGNMENT = 128  # bytes


@dataclass(frozen=True, slots=True)
class NextWeight:
    """Which bytes of the next weight to ask for: the beginning of what each program of its first wave will read."""

    segments: int
    """Pieces in all: rows times splits."""
    splits: int
    row_bytes: int
    split_bytes: int
    segment_bytes: int
    """Bytes of a piece, whole 16; 0 asks for nothing."""
    programs: int
    """Programs that ask: the last ones of the launch."""
    per_program: int
    """Pieces that each asks for."""


NO_NEXT_WEIGHT = NextWeight(0, 1, 0, 0, 0, 1, 0)


def next_weight_of(values: torch.Tensor | None, config: StreamedLinearConfig | None, programs: int) -> NextWeight:
    """What a launch of `programs` programs asks for of `values` [N, K], which will be read with `config`."""
    if values is None or config is None or values.shape[1] * values.itemsize % 16:
        return NO_NEXT_WEIGHT
    out_features, in_features = values.shape
    split_bytes = config.split_width(in_features) * values.itemsize
    splits = triton.cdiv(in_features * values.itemsize, split_bytes)
    # Programs beyond the first wave come too late to need it.
    rows = min(out_features, _PREFETCHING_PROGRAMS // splits * config.block_n)
    segments = rows * splits
    segment_bytes = min(split_bytes, NEXT_BYTES // segments // _SEGMENT_ALIGNMENT * _SEGMENT_ALIGNMENT)
    # The last split of a row is the shortest, and nothing beyond the row may be asked for.
    segment_bytes = min(segment_bytes, in_features * values.itemsize - (splits - 1) * split_bytes)
    asking = min(programs, _PREFETCHING_PROGRAMS)
    return NextWeight(
        segments=segments,
        splits=splits,
        row_bytes=in_features * values.itemsize,
        split_bytes=split_bytes,
        segment_bytes=segment_bytes // 16 * 16,
        programs=asking,
        per_program=triton.cdiv(segments, asking),
    )


@triton.jit
def prefetch_next_weight(
    weight,
    program,
    num_programs,
    segments,
    splits,
    row_bytes,
    split_bytes,
    segment_bytes,
    programs,
    per_program,
    LANES: tl.constexpr,
):
    """Called by every program of a launch, of which the last `programs` ask; the fields are those of `NextWeight`."""
    asking = program - (num_programs - programs)
    if (asking >= 0) & (segment_bytes > 0):
        base = weight.to(tl.int64, bitcast=True)
        first = asking * per_program
        last = tl.minimum(first + per_program, segments)
        for start in range(first, last, LANES):
            # Lanes beyond the last ask for the last again.
            segment = tl.minimum(start + tl.arange(0, LANES), last - 1)
            offset = (segment // splits).to(tl.int64) * row_bytes + segment % splits * split_bytes
            prefetch_l2(base + offset, segment_bytes)


@triton.jit
def prefetch_l2(addresses, num_bytes):
    """Ask for `num_bytes` (whole 16) at every one of `addresses` (int64, 16-byte aligned)."""
    tl.inline_asm_elementwise(
        "cp.async.bulk.prefetch.L2.global [$1], $2; // $0",
        "=r,l,r",
        [addresses, num_bytes],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )

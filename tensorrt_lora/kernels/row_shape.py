"""How a program that keeps a whole row in its registers takes it: in chunks of a power of two, all by the same threads.

Used by `rms_norm` and `fp8_quantize`. A function of the width alone, never of T: so the sums of a row keep their order.
"""

from dataclasses import dataclass

import triton
import triton.language as tl

_MAX_CHUNKS = 5
_THREAD_COLUMNS = 4  # of a chunk: 8 bytes of bfloat16
_MAX_WARPS = 32


@dataclass(frozen=True, slots=True)
class RowShape:
    """Columns of a chunk, chunks of a row (the last may be a part of one), and warps of the program.

    One processor has the row to itself, and its instructions are what a step with one token waits for. So few columns
    are beyond the row (5120 are five times 1024, where one power of two would be 8192), and threads are few, each with
    up to 20 columns behind one address and one place in a sum or a maximum over all. Counted in the SASS of `rms_norm`
    with sum and quantisation by token, for 5120 columns, instructions times warps by the four schedulers: 820 with
    these 8 warps; 650 with 4, which hide less of each other's latencies, 1200 with 16; as one chunk of 8192 over 1500.
    """

    block: int
    chunks: int
    num_warps: int


def row_shape(width: int) -> RowShape:
    """A chunk is whole groups of 128, if there is more than one."""
    block = triton.next_power_of_2(triton.cdiv(width, _MAX_CHUNKS))
    block = max(block, min(128, triton.next_power_of_2(width)))
    num_warps = min(_MAX_WARPS, max(1, block // (32 * _THREAD_COLUMNS)))
    return RowShape(block, triton.cdiv(width, block), num_warps)


@triton.jit
def load_chunks(row, column, WIDTH: tl.constexpr, CHUNKS: tl.constexpr):
    """Values at `column` [block] of a row, and at what is one or more chunks further: a tuple of [block] each."""
    chunks = tl.tuple(())
    for chunk in tl.static_range(CHUNKS):
        at = chunk * column.shape[0] + column
        chunks += (tl.load(row + at, mask=at < WIDTH, other=0.0),)
    return chunks

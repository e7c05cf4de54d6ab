"""A softmax over scores that come in tiles, of which slices are summed by programs of their own and then merged.

Called inside `fused_decode_attention`'s kernel. A slice's state: the largest score of each query, the sum of its
weights 2^(score - largest), and the sum of values so weighted. `pair_sums` [SPLITS, GROUP, HEAD_DIM] and `pair_stats`
[SPLITS, 2, GROUP] are where the slices of one request and key head meet.
"""

import triton
import triton.language as tl


@triton.jit
def attend(q_first, q_second, k_first, k_second, values, first, last, largest, total, acc, SCALE: tl.constexpr):
    """One more tile in a running softmax, of which at least one score is finite."""
    BLOCK_TOKENS: tl.constexpr = k_first.shape[0]
    scores = tl.dot(q_first, tl.trans(k_first), input_precision="ieee")
    scores = tl.dot(q_second, tl.trans(k_second), scores, input_precision="ieee")
    token = first + tl.arange(0, BLOCK_TOKENS)
    scores = tl.where((token < last)[None, :], scores * SCALE, -float("inf"))
    new_largest = tl.maximum(largest, tl.max(scores, axis=1))
    weights = tl.exp2(scores - new_largest[:, None])
    decay = tl.exp2(largest - new_largest)
    total = total * decay + tl.sum(weights, axis=1)
    acc = tl.dot(weights.to(values.dtype), values, acc * decay[:, None], input_precision="ieee")
    return new_largest, total, acc


@triton.jit
def store_slice(pair_sums, pair_stats, split, largest, total, acc, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr):
    """Leave what a slice has come to in the workspace."""
    BLOCK_HEADS: tl.constexpr = acc.shape[0]
    BLOCK_DIM: tl.constexpr = acc.shape[1]
    head = tl.arange(0, BLOCK_HEADS)
    d = tl.arange(0, BLOCK_DIM)
    tile = pair_sums + (split * GROUP + head)[:, None] * HEAD_DIM + d[None, :]
    tl.store(tile, acc, mask=(head < GROUP)[:, None] & (d < HEAD_DIM)[None, :])
    slice_stats = pair_stats + split * (2 * GROUP) + head
    tl.store(slice_stats, largest, mask=head < GROUP)
    tl.store(slice_stats + GROUP, total, mask=head < GROUP)


@triton.jit
def merge_slices(
    pair_sums,
    pair_stats,
    slices,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_GROUP: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    """[BLOCK_GROUP, BLOCK_DIM] float32: the slices' sums, in order, over those of their weights."""
    head = tl.arange(0, BLOCK_GROUP)
    d = tl.arange(0, BLOCK_DIM)
    # Past the first-level cache, which knows nothing of what other SMs wrote. Nothing is exchanged between threads, so
    # that all loads are under way at once.
    largest = tl.full((BLOCK_GROUP,), -float("inf"), tl.float32)
    for index in tl.static_range(SPLITS):
        live = (head < GROUP) & (index < slices)
        slice_largest = tl.load(
            pair_stats + index * (2 * GROUP) + head, mask=live, other=-float("inf"), cache_modifier=".cg"
        )
        largest = tl.maximum(largest, slice_largest)
    total = tl.where(head < GROUP, 0.0, 1.0)
    acc = tl.zeros((BLOCK_GROUP, BLOCK_DIM), tl.float32)
    for index in tl.static_range(SPLITS):
        live = (head < GROUP) & (index < slices)
        slice_stats = pair_stats + index * (2 * GROUP) + head
        slice_largest = tl.load(slice_stats, mask=live, other=0.0, cache_modifier=".cg")
        slice_total = tl.load(slice_stats + GROUP, mask=live, other=0.0, cache_modifier=".cg")
        tile = pair_sums + (index * GROUP + head)[:, None] * HEAD_DIM + d[None, :]
        in_tile = live[:, None] & (d < HEAD_DIM)[None, :]
        slice_sum = tl.load(tile, mask=in_tile, other=0.0, cache_modifier=".cg")
        weight = tl.where(live, tl.exp2(slice_largest - largest), 0.0)
        total += weight * slice_total
        acc += weight[:, None] * slice_sum
    return acc / total[:, None]

import pytest
import torch
from torch.nn import functional

from tensorrt_lora.attention_backend import AttentionBatch
from tensorrt_lora.attention_backend.vanilla import VanillaAttention, VanillaAttentionMetadata
from tests.support.attention_layer import write_and_attend

HEADS, KV_HEADS, HEAD_DIM, PAGE_SIZE, LAYERS = 6, 2, 16, 4, 2


def make_metadata(dtype: torch.dtype = torch.float32, pages: int = 64) -> VanillaAttentionMetadata:
    """Over a cache full of NaN: what another request has left there must not matter."""
    return VanillaAttentionMetadata(
        kv_cache=torch.full((LAYERS, pages, 2, PAGE_SIZE, KV_HEADS, HEAD_DIM), torch.nan, dtype=dtype),
        num_heads=HEADS,
        max_num_requests=8,
        max_num_tokens=128,
        use_cuda_graph=False,
    )


def make_backend(layer_idx: int = 1) -> VanillaAttention:
    return VanillaAttention(layer_idx=layer_idx, num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=HEAD_DIM)


def make_qkv(tokens: int) -> torch.Tensor:
    return torch.randn(tokens, (HEADS + 2 * KV_HEADS) * HEAD_DIM)


def split(qkv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    q, k, v = qkv.split((HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM), dim=-1)
    return q, k, v


def attend(qkv: torch.Tensor) -> torch.Tensor:
    """Causal attention over one whole sequence without a cache: [T, HEADS * HEAD_DIM] float64."""
    q, k, v = (x.double().unflatten(-1, (-1, HEAD_DIM)).transpose(0, 1) for x in split(qkv))
    k, v = (x.repeat_interleave(HEADS // KV_HEADS, dim=0) for x in (k, v))
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(0, 1).flatten(1)


def pages_of(sequence: int, tokens: int) -> list[int]:
    """Disjoint pages in descending order; one more than needed."""
    return [10 * (sequence + 1) - page for page in range(-(-tokens // PAGE_SIZE) + 1)]


def run(
    backend: VanillaAttention,
    metadata: VanillaAttentionMetadata,
    sequences: list[torch.Tensor],
    contexts: list[tuple[int, int, int]],
    generations: list[tuple[int, int]],
) -> list[torch.Tensor]:
    """One step: contexts are (sequence, start, stop), generations (sequence, position); one output each."""
    parts = [*contexts, *((sequence, position, position + 1) for sequence, position in generations)]
    metadata.prepare(
        AttentionBatch(
            num_contexts=len(contexts),
            query_lens=[stop - start for _, start, stop in parts],
            kv_lens=[stop for *_, stop in parts],
            page_ids=[pages_of(sequence, stop) for sequence, _, stop in parts],
        )
    )
    qkv = torch.cat([sequences[sequence][start:stop] for sequence, start, stop in parts])
    output = write_and_attend(backend, split(qkv), metadata)
    assert output.is_contiguous() and output.shape == (qkv.shape[0], HEADS * HEAD_DIM)
    return list(output.split([stop - start for _, start, stop in parts]))


def test_prefill_chunks_and_decode_in_mixed_steps() -> None:
    backend, metadata = make_backend(), make_metadata()
    sequences = [make_qkv(tokens) for tokens in (11, 6, 30)]
    expected = [attend(sequence) for sequence in sequences]
    steps: list[tuple[list[tuple[int, int, int]], list[tuple[int, int]]]] = [
        ([(0, 0, 9), (2, 0, 5)], []),
        ([(2, 5, 24), (1, 0, 4)], [(0, 9)]),
        ([(2, 24, 25)], [(1, 4), (0, 10)]),
        ([], [(2, 25), (1, 5)]),
    ]
    for contexts, generations in steps:
        outputs = run(backend, metadata, sequences, contexts, generations)
        wanted = [expected[s][start:stop] for s, start, stop in contexts]
        wanted += [expected[s][position : position + 1] for s, position in generations]
        for output, reference in zip(outputs, wanted, strict=True):
            torch.testing.assert_close(output.double(), reference, rtol=2e-6, atol=2e-6)
    assert metadata.kv_cache[0].isnan().all(), "the other layer's cache is untouched"


def test_a_decode_row_does_not_depend_on_its_neighbours() -> None:
    sequences = [make_qkv(tokens) for tokens in (8, 21, 5, 9)]
    ends = [(index, sequence.shape[0] - 1) for index, sequence in enumerate(sequences)]

    def decode(rows: list[tuple[int, int]]) -> list[torch.Tensor]:
        backend, metadata = make_backend(), make_metadata()
        run(backend, metadata, sequences, [(index, 0, position) for index, position in ends], [])
        return run(backend, metadata, sequences, [], rows)

    together = decode(ends)
    for row, output in zip(ends, together, strict=True):
        torch.testing.assert_close(decode([row])[0], output, rtol=0, atol=1e-6)


def test_padding_rows_live_in_page_zero() -> None:
    backend, metadata = make_backend(), make_metadata()
    sequence = make_qkv(6)
    run(backend, metadata, [sequence], [(0, 0, 5)], [])
    metadata.prepare(AttentionBatch(0, [1, 1, 1], [6, 1, 1], [pages_of(0, 6), [0], [0]]))
    output = write_and_attend(backend, split(torch.cat([sequence[5:], make_qkv(2)])), metadata)
    torch.testing.assert_close(output[:1].double(), attend(sequence)[5:], rtol=2e-6, atol=2e-6)
    assert output.isfinite().all()


def test_bfloat16() -> None:
    backend, metadata = make_backend(), make_metadata(torch.bfloat16)
    sequence = make_qkv(10).bfloat16()
    outputs = [
        *run(backend, metadata, [sequence], [(0, 0, 9)], []),
        *run(backend, metadata, [sequence], [], [(0, 9)]),
    ]
    torch.testing.assert_close(torch.cat(outputs).double(), attend(sequence), rtol=2e-2, atol=2e-2)


def test_prepare_keeps_the_slot_buffer() -> None:
    metadata = make_metadata()
    address = metadata.cache_slots.data_ptr()
    metadata.prepare(AttentionBatch(1, [5], [5], [[3, 1]]))
    assert metadata.num_tokens == 5
    assert metadata.cache_slots[:5].tolist() == [12, 13, 14, 15, 4]
    metadata.prepare(AttentionBatch(0, [1], [6], [[3, 1]]))
    assert metadata.num_tokens == 1 and metadata.cache_slots[:1].tolist() == [5]
    assert metadata.cache_slots.data_ptr() == address


def test_graph_capture_is_refused() -> None:
    with pytest.raises(ValueError, match="VANILLA attention runs eagerly only; set cuda_graph_config=None"):
        VanillaAttentionMetadata(
            kv_cache=torch.zeros(1, 2, 2, PAGE_SIZE, KV_HEADS, HEAD_DIM),
            num_heads=HEADS,
            max_num_requests=1,
            max_num_tokens=1,
            use_cuda_graph=True,
        )

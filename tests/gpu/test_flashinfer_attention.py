"""The FLASHINFER backend over the paged cache: against fp32, captured decode against eager decode, captured prefill.

Decode steps of few requests run in our own kernel, whose other tests are in test_decode_attention.py.
"""

import math
import random

import pytest
import torch

pytest.importorskip("flashinfer")

from tensorrt_lora.attention_backend.flashinfer import FlashInferAttention, FlashInferAttentionMetadata
from tensorrt_lora.attention_backend.interface import AttentionBatch, AttentionMetadata
from tensorrt_lora.kernels.decode_attention_config import MAX_FUSED_REQUESTS
from tests.support.attention_layer import write_and_attend

pytestmark = pytest.mark.gpu

HEAD_DIM = 128
PAGE_SIZE = 16
NUM_PAGES = 1600
NUM_LAYERS = 2
MAX_REQUESTS = 80
MAX_TOKENS = 2048
DTYPE = torch.bfloat16
PLANNED = MAX_FUSED_REQUESTS + 8  # decode rows that are FlashInfer's

HEADS = [(16, 2), (4, 4), (32, 8)]  # query heads, key/value heads: 8, 1 and 4 to a group

# name: contexts, query lengths, lengths after the step
BATCHES = {
    "one short prefill": (1, [3], [3]),
    "prefill of several": (4, [5, 16, 33, 200], [5, 16, 33, 200]),
    "chunked prefill": (3, [20, 1, 130], [100, 17, 400]),
    "decode across page borders": (0, [1] * 7, [1, 15, 16, 17, 32, 33, 300]),
    "decode of one long request": (0, [1], [3000]),
    "decode of more requests than FlashInfer splits": (0, [1] * 70, [50 + 5 * i for i in range(70)]),
    "mixed": (2, [40, 9, 1, 1, 1], [40, 90, 1, 64, 129]),
    "decode with padding rows": (0, [1] * 4, [70, 16, 1, 1]),
}
PADDING_ROWS = {"decode with padding rows": 2}


def make_batch(num_contexts: int, query_lens: list[int], kv_lens: list[int], padding: int = 0) -> AttentionBatch:
    """Scattered pages, one more than needed each; the last `padding` rows sit on page 0."""
    free = random.sample(range(1, NUM_PAGES), NUM_PAGES - 1)
    page_ids = []
    for row, kv_len in enumerate(kv_lens):
        if row >= len(kv_lens) - padding:
            page_ids.append([0])
            continue
        count = -(-kv_len // PAGE_SIZE) + 1
        page_ids.append(free[:count])
        free = free[count:]
    return AttentionBatch(num_contexts, query_lens, kv_lens, page_ids)


def make_cache(num_kv_heads: int, device: torch.device) -> torch.Tensor:
    shape = (NUM_LAYERS, NUM_PAGES, 2, PAGE_SIZE, num_kv_heads, HEAD_DIM)
    return torch.randn(shape, dtype=DTYPE, device=device)


def make_metadata(cache: torch.Tensor, num_heads: int) -> FlashInferAttentionMetadata:
    return FlashInferAttentionMetadata(
        kv_cache=cache,
        num_heads=num_heads,
        max_num_requests=MAX_REQUESTS,
        max_num_tokens=MAX_TOKENS,
        use_cuda_graph=False,
    )


def make_layer(num_heads: int, num_kv_heads: int, layer_idx: int = 1) -> FlashInferAttention:
    return FlashInferAttention(layer_idx=layer_idx, num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=HEAD_DIM)


def make_qkv(num_tokens: int, heads: tuple[int, int], device: torch.device) -> tuple[torch.Tensor, ...]:
    """q, k, v as strided slices of one projection's output."""
    sizes = [heads[0] * HEAD_DIM, heads[1] * HEAD_DIM, heads[1] * HEAD_DIM]
    return torch.randn(num_tokens, sum(sizes), dtype=DTYPE, device=device).split(sizes, dim=-1)


def write_reference(cache: torch.Tensor, k: torch.Tensor, v: torch.Tensor, batch: AttentionBatch) -> None:
    """Store keys and values [T, K, D] in one layer's cache, token by token."""
    token = 0
    for query_len, kv_len, pages in zip(batch.query_lens, batch.kv_lens, batch.page_ids, strict=True):
        for position in range(kv_len - query_len, kv_len):
            page, offset = pages[position // PAGE_SIZE], position % PAGE_SIZE
            cache[page, 0, offset] = k[token]
            cache[page, 1, offset] = v[token]
            token += 1


def attend_reference(q: torch.Tensor, cache: torch.Tensor, batch: AttentionBatch) -> torch.Tensor:
    """fp32 attention of q [T, H, D] over one layer's cache."""
    group = q.shape[1] // cache.shape[3]
    outputs = []
    start = 0
    for query_len, kv_len, pages in zip(batch.query_lens, batch.kv_lens, batch.page_ids, strict=True):
        ids = torch.tensor(pages, device=q.device)
        key, value = (
            cache[ids, part].flatten(0, 1)[:kv_len].float().repeat_interleave(group, dim=1) for part in (0, 1)
        )
        query = q[start : start + query_len].float()
        scores = torch.einsum("qhd,khd->hqk", query, key) / math.sqrt(HEAD_DIM)
        seen = torch.ones(query_len, kv_len, dtype=torch.bool, device=q.device).tril(kv_len - query_len)
        weights = scores.masked_fill(~seen, -math.inf).softmax(dim=-1)
        outputs.append(torch.einsum("hqk,khd->qhd", weights, value))
        start += query_len
    return torch.cat(outputs)


@pytest.mark.parametrize("heads", HEADS, ids=lambda heads: f"{heads[0]}x{heads[1]}")
@pytest.mark.parametrize("name", BATCHES)
def test_eager_equals_fp32(name: str, heads: tuple[int, int], device: torch.device) -> None:
    num_heads, num_kv_heads = heads
    batch = make_batch(*BATCHES[name], padding=PADDING_ROWS.get(name, 0))
    cache = make_cache(num_kv_heads, device)
    expected_cache = cache.clone()
    q, k, v = make_qkv(batch.num_tokens, heads, device)
    metadata = make_metadata(cache, num_heads)
    metadata.prepare(batch)
    output = write_and_attend(make_layer(num_heads, num_kv_heads), (q, k, v), metadata)

    kv_shape = (batch.num_tokens, num_kv_heads, HEAD_DIM)
    write_reference(expected_cache[1], k.view(kv_shape), v.view(kv_shape), batch)
    # Padding rows race for the one slot of page 0.
    assert torch.equal(cache[:, 1:], expected_cache[:, 1:])
    live = batch.num_tokens - PADDING_ROWS.get(name, 0)
    expected = attend_reference(q.unflatten(1, (num_heads, HEAD_DIM)), cache[1], batch).flatten(1)
    assert output.shape == q.shape and output.is_contiguous()
    torch.testing.assert_close(output[:live].float(), expected[:live], atol=0.01, rtol=0.02)


class CapturedLayer:
    """One layer's attention of all rows of a graph, with static inputs.

    Args:
        metadata: of the graph.
        padding: a batch of padding alone.
    """

    def __init__(self, metadata: AttentionMetadata, heads: tuple[int, int], padding: AttentionBatch) -> None:
        self.metadata = metadata
        self.layer = make_layer(*heads)
        self.qkv = make_qkv(metadata.max_num_tokens, heads, metadata.kv_cache.device)
        self.metadata.prepare(padding)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            write_and_attend(self.layer, self.qkv, self.metadata)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.output = write_and_attend(self.layer, self.qkv, self.metadata)

    def run(self, batch: AttentionBatch, qkv: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Outputs of the rows that `qkv` has, the batch's own."""
        rows = qkv[0].shape[0]
        for static, new in zip(self.qkv, qkv, strict=True):
            static[:rows].copy_(new)
        self.metadata.prepare(batch)
        self.graph.replay()
        return self.output[:rows].clone()


def capture_decode(eager: FlashInferAttentionMetadata, heads: tuple[int, int], batch_size: int) -> CapturedLayer:
    return CapturedLayer(eager.create_cuda_graph_metadata(batch_size), heads, AttentionBatch(0, [], [], []))


def capture_prefill(
    eager: FlashInferAttentionMetadata, heads: tuple[int, int], num_tokens: int, num_requests: int
) -> CapturedLayer:
    metadata = eager.create_prefill_graph_metadata(num_tokens, num_requests)
    return CapturedLayer(metadata, heads, as_contexts(AttentionBatch(0, [], [], []), num_tokens))


def as_contexts(batch: AttentionBatch, num_tokens: int) -> AttentionBatch:
    """As a prefill graph takes it: contexts only, and one more that owns the padding rows."""
    padding = [num_tokens - batch.num_tokens] if batch.num_tokens < num_tokens else []
    query_lens = batch.query_lens + padding
    page_ids = batch.page_ids + [[0] * length for length in padding]
    return AttentionBatch(len(query_lens), query_lens, batch.kv_lens + padding, page_ids)


def decode_batches(batch_size: int) -> list[AttentionBatch]:
    """Decode batches of up to `batch_size` rows: short, long, growing, and with fewer requests."""
    lengths = [
        [1 + i for i in range(batch_size)],
        [16 * (1 + i % 4) for i in range(batch_size)],
        [16 * (1 + i % 4) + 1 for i in range(batch_size)],
        [2000, *[40] * (batch_size - 1)],
        [2500],
        [100 + i for i in range(batch_size - 1)],
    ]
    return [make_batch(0, [1] * len(kv_lens), kv_lens) for kv_lens in lengths]


def with_padding(batch: AttentionBatch, batch_size: int) -> AttentionBatch:
    missing = batch_size - batch.num_requests
    return AttentionBatch(0, [1] * batch_size, batch.kv_lens + [1] * missing, batch.page_ids + [[0]] * missing)


@pytest.mark.parametrize("heads", HEADS, ids=lambda heads: f"{heads[0]}x{heads[1]}")
@pytest.mark.parametrize("batch_size", [1, 8, 40, PLANNED])
def test_replay_equals_eager_bit_for_bit(batch_size: int, heads: tuple[int, int], device: torch.device) -> None:
    cache = make_cache(heads[1], device)
    eager = make_metadata(cache, heads[0])
    captured = capture_decode(eager, heads, batch_size)
    for batch in decode_batches(batch_size):
        if batch.num_requests == 0:
            continue
        qkv = make_qkv(batch.num_requests, heads, device)
        output = captured.run(batch, qkv)
        written = cache.clone()
        eager.prepare(with_padding(batch, batch_size))
        expected = write_and_attend(captured.layer, captured.qkv, eager)[: batch.num_requests]
        assert torch.equal(output, expected)
        assert torch.equal(written[:, 1:], cache[:, 1:])
        reference = attend_reference(qkv[0].unflatten(1, (heads[0], HEAD_DIM)), cache[1], batch).flatten(1)
        torch.testing.assert_close(output.float(), reference, atol=0.01, rtol=0.02)


PREFILL_GRAPHS = {"one row each": (16, 16), "few requests": (256, 3), "mixed": (256, 42), "large": (512, 65)}


@pytest.mark.parametrize("heads", HEADS, ids=lambda heads: f"{heads[0]}x{heads[1]}")
@pytest.mark.parametrize("sizes", PREFILL_GRAPHS.values(), ids=PREFILL_GRAPHS.keys())
def test_prefill_replay_equals_fp32(sizes: tuple[int, int], heads: tuple[int, int], device: torch.device) -> None:
    """Prefills, chunks behind a prefix, decode rows and both together, with and without padding, in one graph."""
    num_tokens, num_requests = sizes
    cache = make_cache(heads[1], device)
    captured = capture_prefill(make_metadata(cache, heads[0]), heads, num_tokens, num_requests)
    batches = [make_batch(*BATCHES[name]) for name in BATCHES if name not in PADDING_ROWS]
    batches.append(make_batch(1, [num_tokens], [num_tokens]))
    batches.append(make_batch(2, [num_tokens - 1, 1], [num_tokens + 30, 900]))
    batches = [batch for batch in batches if batch.num_requests < num_requests and batch.num_tokens <= num_tokens]
    assert len(batches) >= 3
    for batch in batches:
        qkv = make_qkv(batch.num_tokens, heads, device)
        kv_shape = (batch.num_tokens, heads[1], HEAD_DIM)
        expected_cache = cache.clone()
        write_reference(expected_cache[1], qkv[1].view(kv_shape), qkv[2].view(kv_shape), batch)
        output = captured.run(as_contexts(batch, num_tokens), qkv)
        assert torch.equal(cache[:, 1:], expected_cache[:, 1:])
        reference = attend_reference(qkv[0].unflatten(1, (heads[0], HEAD_DIM)), cache[1], batch).flatten(1)
        torch.testing.assert_close(output.float(), reference, atol=0.01, rtol=0.02)
        assert captured.output.isfinite().all()
        assert torch.equal(captured.run(as_contexts(batch, num_tokens), qkv), output)


def test_a_prefill_graph_with_a_row_for_each_request(device: torch.device) -> None:
    """No padding, no request of no tokens, and as many tiles as the plan has."""
    heads, rows = (16, 2), 16
    cache = make_cache(heads[1], device)
    captured = capture_prefill(make_metadata(cache, heads[0]), heads, rows, rows)
    batch = make_batch(rows, [1] * rows, [1 + 60 * row for row in range(rows)])
    qkv = make_qkv(rows, heads, device)
    output = captured.run(batch, qkv)
    reference = attend_reference(qkv[0].unflatten(1, (heads[0], HEAD_DIM)), cache[1], batch).flatten(1)
    torch.testing.assert_close(output.float(), reference, atol=0.01, rtol=0.02)


def test_the_host_may_run_ahead_of_captured_prefills(device: torch.device) -> None:
    """In turn with decode graphs, fused and planned, whose plans and page tables lie in the same memory."""
    heads = (16, 2)
    cache = make_cache(heads[1], device)
    eager = make_metadata(cache, heads[0])
    prefills = {size: capture_prefill(eager, heads, size, 8) for size in (256, 64)}
    decodes = [capture_decode(eager, heads, size) for size in (8, PLANNED)]
    cache_before = cache.clone()
    steps = []
    for name in ("prefill of several", "one short prefill", "mixed", "chunked prefill", "prefill of several"):
        batch = make_batch(*BATCHES[name])
        size = 64 if batch.num_tokens <= 64 else 256
        steps.append((prefills[size], as_contexts(batch, size), make_qkv(batch.num_tokens, heads, device)))
        for decode in decodes:
            batch = make_batch(0, [1] * 5, [40, 500, 3, 77, 1000])
            steps.append((decode, batch, make_qkv(5, heads, device)))
    expected = []
    for captured, batch, qkv in steps:
        expected.append(captured.run(batch, qkv))
        torch.cuda.synchronize()
    cache.copy_(cache_before)
    ahead = []
    for captured, batch, qkv in steps:
        torch.cuda._sleep(2_000_000)
        ahead.append(captured.run(batch, qkv))
    torch.cuda.synchronize()
    for got, want in zip(ahead, expected, strict=True):
        assert torch.equal(got, want)


def test_graphs_of_several_sizes_and_eager_steps_share_a_workspace(device: torch.device) -> None:
    heads = (16, 2)
    cache = make_cache(heads[1], device)
    eager = make_metadata(cache, heads[0])
    captured = {size: capture_decode(eager, heads, size) for size in (PLANNED, 16, 4, 1)}
    prefill = make_batch(*BATCHES["mixed"])
    prefill_qkv = make_qkv(prefill.num_tokens, heads, device)
    for size in (4, 16, 1, PLANNED, 16, PLANNED, 4):
        eager.prepare(prefill)
        output = write_and_attend(captured[size].layer, prefill_qkv, eager)
        expected = attend_reference(prefill_qkv[0].unflatten(1, (heads[0], HEAD_DIM)), cache[1], prefill).flatten(1)
        torch.testing.assert_close(output.float(), expected, atol=0.01, rtol=0.02)
        batch = make_batch(0, [1] * size, [random.randint(1, 200) for _ in range(size)])
        qkv = make_qkv(size, heads, device)
        replayed = captured[size].run(batch, qkv)
        expected = attend_reference(qkv[0].unflatten(1, (heads[0], HEAD_DIM)), cache[1], batch).flatten(1)
        torch.testing.assert_close(replayed.float(), expected, atol=0.01, rtol=0.02)


@pytest.mark.parametrize("size", [8, PLANNED])
def test_the_host_may_run_ahead_of_the_device(size: int, device: torch.device) -> None:
    """Steps prepared while earlier ones still wait on the device give what they give one at a time."""
    heads = (16, 2)
    cache = make_cache(heads[1], device)
    captured = capture_decode(make_metadata(cache, heads[0]), heads, size)
    cache_before = cache.clone()
    steps = [(batch, make_qkv(batch.num_requests, heads, device)) for batch in decode_batches(size) * 2]
    expected = []
    for batch, qkv in steps:
        expected.append(captured.run(batch, qkv))
        torch.cuda.synchronize()
    cache.copy_(cache_before)
    ahead = []
    for batch, qkv in steps:
        torch.cuda._sleep(2_000_000)
        ahead.append(captured.run(batch, qkv))
    torch.cuda.synchronize()
    for got, want in zip(ahead, expected, strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("name", ["prefill of several", "decode across page borders", "mixed"])
def test_prepare_does_not_wait_for_the_device(name: str, device: torch.device) -> None:
    eager = make_metadata(make_cache(2, device), 16)
    decodes = [eager.create_cuda_graph_metadata(size) for size in (8, PLANNED)]
    prefill = eager.create_prefill_graph_metadata(256, 8)
    batch = make_batch(*BATCHES[name])
    eager.prepare(batch)  # the first call may load kernels
    prefill.prepare(as_contexts(batch, 256))
    torch.cuda.set_sync_debug_mode("error")
    try:
        eager.prepare(batch)
        prefill.prepare(as_contexts(batch, 256))
        if batch.num_contexts == 0:
            for captured in decodes:
                captured.prepare(batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_further_graph_takes_little_memory(device: torch.device) -> None:
    eager = make_metadata(make_cache(2, device), 16)
    eager.create_cuda_graph_metadata(8)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    graphs = [eager.create_cuda_graph_metadata(size) for size in (1, 2, 4, 16, 32)]
    assert torch.cuda.memory_allocated() - before < 2**20
    assert len(graphs) == 5


@pytest.mark.parametrize(("dtype", "head_dim", "message"), [(torch.float32, 128, "float32"), (DTYPE, 64, "head size")])
def test_refuses_other_models(dtype: torch.dtype, head_dim: int, message: str, device: torch.device) -> None:
    cache = torch.zeros(1, 4, 2, PAGE_SIZE, 2, head_dim, dtype=dtype, device=device)
    with pytest.raises(ValueError, match=message):
        make_metadata(cache, 4)

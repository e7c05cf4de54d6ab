"""Fused decode attention on a GPU: against fp32, beside `qk_norm_rope`, repeated, captured, in a chain of layers."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig

from tensorrt_lora.attention_backend import AttentionBatch, AttentionMetadata, get_attention_backend
from tensorrt_lora.config.model_config import ModelConfig
from tensorrt_lora.kernels.decode_attention import HeadNormRope, PageTables, fused_decode_attention
from tensorrt_lora.kernels.decode_attention_config import MAX_FUSED_REQUESTS, balanced_slice
from tensorrt_lora.kernels.decode_attention_workspace import DecodeAttentionWorkspace
from tensorrt_lora.kernels.lora_delta import LoraDelta
from tensorrt_lora.kernels.qk_norm_rope import KvCacheWrite, qk_norm_rope
from tensorrt_lora.modules.attention import Attention
from tensorrt_lora.modules.rotary_embedding import RotaryEmbedding
from tests.support.completed import completed
from tests.support.lora_deltas import ALL_SLOTS, added, make_lora_delta, random_output, same_bits

pytestmark = pytest.mark.gpu

DEVICE = torch.device("cuda")
DTYPE = torch.bfloat16
EPS = 1e-6
POSITIONS = 2**15
TOKENS = 20 * 2**10  # of most caches
TOLERANCE = 0.01  # relative, over all values of a row

# query heads, key heads, head size
MODELS = [(64, 8, 128), (32, 8, 128), (4, 4, 128), (16, 1, 128), (10, 2, 128), (9, 3, 64), (32, 4, 64)]
LENGTHS = {
    "one token": [1],
    "a short one": [63],
    "borders of tiles": [64, 65, 66, 127, 128, 129],
    "borders of pages": [1, 15, 16, 17, 100, 513],
    "one": [512],
    "a long one": [9000],
    "as many as there may be": [1 + 9 * row for row in range(MAX_FUSED_REQUESTS)],
    "a long one among short ones": [5000, *[20 + row for row in range(MAX_FUSED_REQUESTS - 1)]],
    "a long one among few": [5000, *[20 + row for row in range(15)]],
}


class Model:
    """A layer's cache, its norms, and scattered pages for requests; cached tokens are random, of any request."""

    def __init__(
        self, heads: int, kv_heads: int, head_dim: int, page_size: int = 16, norm: bool = True, tokens: int = TOKENS
    ) -> None:
        self.heads, self.kv_heads, self.head_dim, self.page_size = heads, kv_heads, head_dim, page_size
        self.sizes = [heads * head_dim, kv_heads * head_dim, kv_heads * head_dim]
        self.generator = torch.Generator(DEVICE).manual_seed(5)
        self.cache = self.random(tokens // page_size, 2, page_size, kv_heads, head_dim)
        weights = (1 + 0.3 * self.random(2, head_dim).float()).to(DTYPE)
        self.weights = (weights[0], weights[1]) if norm else (None, None)
        self.table = make_table(head_dim)
        self.workspace = DecodeAttentionWorkspace.create(self.cache, heads, MAX_FUSED_REQUESTS)

    def random(self, *shape: int) -> Tensor:
        return torch.randn(shape, device=DEVICE, dtype=DTYPE, generator=self.generator)

    def norm_rope(self, lengths: list[int]) -> HeadNormRope:
        positions = torch.tensor(lengths) - 1
        return HeadNormRope(positions.to(DEVICE), self.table, *self.weights, EPS)

    def pages(self, lengths: list[int], padding: int = 0) -> list[list[int]]:
        """The last `padding` requests own page 0."""
        free = iter((1 + torch.randperm(self.cache.shape[0] - 1)).tolist())
        pages = [[next(free) for _ in range(-(-length // self.page_size))] for length in lengths]
        return pages[: len(pages) - padding] + [[0]] * padding

    def tables(self, lengths: list[int], pages: list[list[int]], slice_tokens: int | None = None) -> PageTables:
        slice_tokens = slice_tokens or balanced_slice(sum(lengths), self.kv_heads)
        counts = torch.tensor([0] + [len(ids) for ids in pages])
        return PageTables(
            indptr=counts.cumsum(0).int().to(DEVICE),
            page_ids=torch.tensor([page for ids in pages for page in ids], dtype=torch.int32).to(DEVICE),
            last_page_len=torch.tensor([(n - 1) % self.page_size + 1 for n in lengths]).int().to(DEVICE),
            slice_tokens=torch.tensor([slice_tokens], dtype=torch.int32).to(DEVICE),
        )

    def run(
        self,
        qkv: Tensor,
        norm_rope: HeadNormRope,
        tables: PageTables,
        cache: Tensor,
        delta: LoraDelta | None = None,
    ) -> Tensor:
        q, k, v = qkv.split(self.sizes, dim=-1)
        return fused_decode_attention(q, k, v, norm_rope, cache, tables, self.workspace, delta)

    def expected(
        self, qkv: Tensor, lengths: list[int], pages: list[list[int]], delta: LoraDelta | None = None
    ) -> tuple[Tensor, Tensor]:
        """(outputs in fp32, the cache after the step), from what `qk_norm_rope` makes of both."""
        cache = self.cache.clone()
        q, k, v = qkv.clone().split(self.sizes, dim=-1)
        last = [n - 1 for n in lengths]
        slots = [
            ids[n // self.page_size] * self.page_size + n % self.page_size for n, ids in zip(last, pages, strict=True)
        ]
        how = self.norm_rope(lengths)
        write = KvCacheWrite(v, cache, torch.tensor(slots).to(DEVICE))
        qk_norm_rope(q, k, how.position_ids, self.table, self.head_dim, how.q_weight, how.k_weight, EPS, write, delta)
        rows = []
        for row, (length, ids) in enumerate(zip(lengths, pages, strict=True)):
            keys, values = (
                cache[ids, part].flatten(0, 1)[:length].float().repeat_interleave(self.heads // self.kv_heads, dim=1)
                for part in (0, 1)
            )
            query = q[row].view(self.heads, self.head_dim).float()
            weights = (torch.einsum("hd,nhd->hn", query, keys) / self.head_dim**0.5).softmax(dim=-1)
            rows.append(torch.einsum("hn,nhd->hd", weights, values).flatten())
        return torch.stack(rows), cache


def make_table(head_dim: int) -> Tensor:
    frequencies = 1e6 ** -(torch.arange(0, head_dim, 2, dtype=torch.float64, device=DEVICE) / head_dim)
    angles = torch.outer(torch.arange(POSITIONS, dtype=torch.float64, device=DEVICE), frequencies)
    return torch.cat((angles.cos(), angles.sin()), dim=-1).float()


def assert_close(actual: Tensor, expected: Tensor) -> None:
    """Row by row, so that a short request's error does not hide behind a long one's."""
    errors = (actual.double() - expected.double()).norm(dim=-1) / expected.double().norm(dim=-1)
    assert bool((errors < TOLERANCE).all()), errors.tolist()


def assert_right(model: Model, lengths: list[int]) -> None:
    pages = model.pages(lengths)
    qkv = 2 * model.random(len(lengths), sum(model.sizes))
    before = qkv.clone()
    expected, expected_cache = model.expected(qkv, lengths, pages)
    norm_rope, tables = model.norm_rope(lengths), model.tables(lengths, pages)
    cache = model.cache.clone()
    output = model.run(qkv, norm_rope, tables, cache)
    assert output.is_contiguous() and output.dtype == DTYPE
    assert_close(output, expected)
    assert torch.equal(cache, expected_cache), "keys and values have the bits of qk_norm_rope"
    assert torch.equal(qkv, before)
    for _ in range(5):
        cache = model.cache.clone()
        assert torch.equal(model.run(qkv, norm_rope, tables, cache), output)
        assert torch.equal(cache, expected_cache)
    assert not model.workspace.counters.any()


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS.keys())
@pytest.mark.parametrize("sizes", MODELS, ids=lambda sizes: "-".join(map(str, sizes)))
def test_equals_fp32(sizes: tuple[int, int, int], lengths: list[int]) -> None:
    assert_right(Model(*sizes), lengths)


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("page_size", [1, 16, 32, 64, 128])
def test_page_sizes(page_size: int, norm: bool) -> None:
    model = Model(32, 8, 128, page_size, norm)
    for lengths in ([700], [1, page_size, page_size + 1, 333]):
        assert_right(model, lengths)


@pytest.mark.parametrize("requests", [*range(1, 18), 24, 31, 32, 33, 47, 48, 63, MAX_FUSED_REQUESTS])
def test_every_number_of_requests(requests: int) -> None:
    assert_right(Model(64, 8, 128), [1 + 71 * row % 500 for row in range(requests)])


@pytest.mark.parametrize("others", [0, 7, 15, MAX_FUSED_REQUESTS - 1])
def test_a_very_long_request(others: int) -> None:
    assert_right(Model(16, 2, 128, tokens=54 * 2**10), [POSITIONS, *[300] * others])


def test_what_lies_beyond_a_request_does_not_reach_it() -> None:
    model = Model(64, 8, 128)
    lengths = [40, 513, 1000]
    pages = model.pages(lengths)
    qkv, norm_rope, tables = model.random(3, sum(model.sizes)), model.norm_rope(lengths), model.tables(lengths, pages)
    cache = model.cache.clone()
    expected = model.run(qkv, norm_rope, tables, cache)
    broken = torch.full_like(cache, torch.nan)
    for length, ids in zip(lengths, pages, strict=True):
        for position in range(length - 1):
            page, offset = ids[position // 16], position % 16
            broken[page, :, offset] = model.cache[page, :, offset]
    assert torch.equal(model.run(qkv, norm_rope, tables, broken), expected)


def test_padding_rows_do_not_matter() -> None:
    """They all write to one place; equal batch sizes and slices give a request the same bits whatever is beside it."""
    model = Model(64, 8, 128)
    lengths = [300, 70, 1, 1, 1]
    pages = model.pages(lengths, padding=3)
    qkv = model.random(5, sum(model.sizes))
    tables, cache = model.tables(lengths, pages, slice_tokens=100), model.cache.clone()
    output = model.run(qkv, model.norm_rope(lengths), tables, cache)
    assert output.isfinite().all()
    assert_close(output[:2], model.expected(qkv, lengths, pages)[0][:2])

    full_lengths = [300, 70, 900, 64, 65]
    full_pages = pages[:2] + [
        [page for page in ids if page not in {*pages[0], *pages[1]}] for ids in model.pages([2000] * 3)
    ]
    full_pages = [ids[: -(-length // 16)] for length, ids in zip(full_lengths, full_pages, strict=True)]
    full_cache = model.cache.clone()
    full_tables = model.tables(full_lengths, full_pages, slice_tokens=100)
    full = model.run(qkv, model.norm_rope(full_lengths), full_tables, full_cache)
    assert torch.equal(full[:2], output[:2])


def test_addresses_beyond_32_bits() -> None:
    model = Model(64, 8, 128)
    lengths = [400, 90]
    pages = model.pages(lengths)
    qkv, norm_rope = model.random(2, sum(model.sizes)), model.norm_rope(lengths)
    expected_cache = model.cache.clone()
    expected = model.run(qkv, norm_rope, model.tables(lengths, pages), expected_cache)
    first = 2**31 // model.cache[0].numel()
    far_cache = torch.empty((first + model.cache.shape[0], *model.cache.shape[1:]), dtype=DTYPE, device=DEVICE)
    far_cache[first:] = model.cache
    far_pages = [[first + page for page in ids] for ids in pages]
    assert torch.equal(model.run(qkv, norm_rope, model.tables(lengths, far_pages), far_cache), expected)
    assert torch.equal(far_cache[first:], expected_cache)


@pytest.mark.parametrize("requests", [1, 3, 16, MAX_FUSED_REQUESTS])
def test_a_graph_serves_growing_requests(requests: int) -> None:
    """Replays equal eager runs bit for bit, as requests grow through tiles, pages and numbers of slices."""
    most = 1100
    model = Model(64, 8, 128, tokens=requests * (most + 16) + 16)
    pages = model.pages([most] * requests)
    static = PageTables(
        indptr=torch.zeros(requests + 1, dtype=torch.int32, device=DEVICE),
        page_ids=torch.zeros(requests * most, dtype=torch.int32, device=DEVICE),
        last_page_len=torch.zeros(requests, dtype=torch.int32, device=DEVICE),
        slice_tokens=torch.zeros(1, dtype=torch.int32, device=DEVICE),
    )
    norm_rope, cache = model.norm_rope([1] * requests), model.cache.clone()
    qkv = model.random(requests, sum(model.sizes))

    def write_tables(lengths: list[int]) -> PageTables:
        used = [ids[: -(-length // 16)] for length, ids in zip(lengths, pages, strict=True)]
        tables = model.tables(lengths, used)
        static.indptr.copy_(tables.indptr)
        static.page_ids[: len(tables.page_ids)].copy_(tables.page_ids)
        static.last_page_len.copy_(tables.last_page_len)
        static.slice_tokens.copy_(tables.slice_tokens)
        norm_rope.position_ids.copy_(torch.tensor(lengths) - 1)
        torch.cuda.synchronize()
        return tables

    write_tables([1] * requests)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        model.run(qkv, norm_rope, static, cache)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = model.run(qkv, norm_rope, static, cache)
    eager_cache = cache.clone()
    for length in (1, 2, 63, 64, 65, 66, 128, 255, 512, 513, 1023, 1024, 1025, 1089, 30):
        lengths = [1 + (length - 1 + 100 * row) % most for row in range(requests)]
        qkv.copy_(model.random(requests, sum(model.sizes)))
        tables = write_tables(lengths)
        graph.replay()
        assert torch.equal(model.run(qkv, norm_rope, tables, eager_cache), output)
        assert torch.equal(cache, eager_cache)


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("sizes", [(64, 8, 128), (4, 4, 128), (9, 3, 64)], ids=lambda sizes: "-".join(map(str, sizes)))
def test_a_delta_is_added_as_by_lora_add(sizes: tuple[int, int, int], norm: bool) -> None:
    model = Model(*sizes, norm=norm)
    lengths = [1 + 83 * row for row in range(len(ALL_SLOTS))]
    pages = model.pages(lengths)
    norm_rope, tables = model.norm_rope(lengths), model.tables(lengths, pages)
    delta = make_lora_delta(model.sizes, ALL_SLOTS, DTYPE, DEVICE)
    qkv = random_output(delta).contiguous()
    before = qkv.clone()

    expected_cache = model.cache.clone()
    expected = model.run(added(delta, qkv), norm_rope, tables, expected_cache)
    for _ in range(3):
        cache = model.cache.clone()
        assert same_bits(model.run(qkv, norm_rope, tables, cache, delta), expected)
        assert same_bits(cache, expected_cache)
    assert same_bits(qkv, before)
    close, cache = model.expected(qkv, lengths, pages, delta)
    assert_close(expected, close)
    assert same_bits(cache, expected_cache), "keys and values have the bits of qk_norm_rope with the delta"


def test_a_graph_serves_any_adapters() -> None:
    """Which adapter is whose is read early, the delta behind what wrote it."""
    model = Model(32, 8, 128)
    lengths = [1 + 83 * row for row in range(len(ALL_SLOTS))]
    norm_rope, tables = model.norm_rope(lengths), model.tables(lengths, model.pages(lengths))
    # The tables are the same whatever the slots of the tokens.
    delta = make_lora_delta(model.sizes, [-1] * len(lengths), DTYPE, DEVICE)
    source, cache = random_output(delta).contiguous(), model.cache.clone()
    values = delta.values.clone()

    def step() -> Tensor:
        qkv = source * 1
        delta.values.copy_(values)
        return model.run(qkv, norm_rope, tables, cache, delta)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = step()
    for shift in range(len(lengths)):
        token_slots = ALL_SLOTS[shift:] + ALL_SLOTS[:shift]
        current = make_lora_delta(model.sizes, token_slots, DTYPE, DEVICE)
        source.copy_(random_output(current, seed=shift))
        values.copy_(current.values)
        delta.batch.token_slots.copy_(current.batch.token_slots)
        torch.cuda.synchronize()
        graph.replay()
        expected_cache = model.cache.clone()
        assert same_bits(model.run(added(current, source), norm_rope, tables, expected_cache), output)
        assert same_bits(cache, expected_cache)


# As the layers of a model call it

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, PAGE_SIZE, LAYERS = 1024, 32, 8, 128, 16, 3
PAGES = 3200


@pytest.fixture
def layers() -> Iterator[list[Attention]]:
    pytest.importorskip("flashinfer")
    config = LlamaConfig(
        hidden_size=HIDDEN,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        architectures=["LlamaForCausalLM"],
    )
    rotary = RotaryEmbedding(config=ModelConfig.from_hf(config), max_positions=2048, device=DEVICE)
    made = [
        Attention(
            layer_idx=index,
            hidden_size=HIDDEN,
            num_heads=HEADS,
            num_kv_heads=KV_HEADS,
            head_dim=HEAD_DIM,
            qkv_bias=False,
            o_bias=False,
            qk_norm_eps=EPS,
            rotary_emb=rotary,
            attn_backend=get_attention_backend("FLASHINFER"),
            dtype=DTYPE,
            device=DEVICE,
        )
        for index in range(LAYERS)
    ]
    generator = torch.Generator(DEVICE).manual_seed(1)
    for layer in made:
        for parameter in layer.parameters():
            values = torch.randn(parameter.shape, device=DEVICE, generator=generator)
            parameter.data.copy_(values / HIDDEN**0.5 if parameter.dim() > 1 else 1 + 0.2 * values)
    with torch.inference_mode():
        yield made


def make_metadata() -> AttentionMetadata:
    generator = torch.Generator(DEVICE).manual_seed(2)
    shape = (LAYERS, PAGES, 2, PAGE_SIZE, KV_HEADS, HEAD_DIM)
    return get_attention_backend("FLASHINFER").Metadata(
        kv_cache=torch.randn(shape, device=DEVICE, dtype=DTYPE, generator=generator),
        num_heads=HEADS,
        max_num_requests=MAX_FUSED_REQUESTS + 8,
        max_num_tokens=512,
        use_cuda_graph=False,
    )


def decode_batch(lengths: list[int], *, as_contexts: bool = False) -> AttentionBatch:
    pages = iter((1 + torch.randperm(PAGES - 1, generator=torch.Generator().manual_seed(3))).tolist())
    page_ids = [[next(pages) for _ in range(-(-length // PAGE_SIZE))] for length in lengths]
    return AttentionBatch(len(lengths) if as_contexts else 0, [1] * len(lengths), lengths, page_ids)


def forward(layers: list[Attention], x: Tensor, positions: Tensor, metadata: AttentionMetadata) -> Tensor:
    for layer in layers:
        x = x + completed(*layer(positions, x, metadata, None))
    return x


def test_the_metadata_says_which_steps_are_fused(layers: list[Attention]) -> None:
    metadata = make_metadata()
    for batch, fused in (
        (decode_batch([5]), True),
        (decode_batch([5] * MAX_FUSED_REQUESTS), True),
        (decode_batch([5] * (MAX_FUSED_REQUESTS + 1)), False),
        (decode_batch([5], as_contexts=True), False),
        (AttentionBatch(1, [3, 1], [3, 9], [[4], [5]]), False),
        (decode_batch([7, 8]), True),
    ):
        metadata.prepare(batch)
        assert metadata.fuses_decode is fused
    assert metadata.create_cuda_graph_metadata(MAX_FUSED_REQUESTS).fuses_decode
    assert not metadata.create_cuda_graph_metadata(MAX_FUSED_REQUESTS + 1).fuses_decode
    assert not metadata.create_prefill_graph_metadata(64, 8).fuses_decode


def test_layers_equal_those_that_do_not_fuse(layers: list[Attention]) -> None:
    """The same step with its tokens as contexts: `qk_norm_rope`, then FlashInfer."""
    lengths = [1, 16, 17, 300, 512, 1000]
    x = torch.randn(len(lengths), HIDDEN, device=DEVICE, dtype=DTYPE)
    positions = (torch.tensor(lengths) - 1).to(DEVICE)
    outputs, caches = [], []
    for as_contexts in (False, True):
        metadata = make_metadata()
        metadata.prepare(decode_batch(lengths, as_contexts=as_contexts))
        assert metadata.fuses_decode is not as_contexts
        outputs.append(forward(layers, x, positions, metadata))
        caches.append(metadata.kv_cache)
    assert_close(outputs[0], outputs[1])
    assert torch.equal(caches[0][0], caches[1][0]), "the first layer's input is the same"


@pytest.mark.parametrize("batch_size", [1, 2, 8, 16, 32, MAX_FUSED_REQUESTS])
def test_captured_layers_equal_eager_ones(batch_size: int, layers: list[Attention]) -> None:
    """Kernels start before their predecessors have ended, and share counters and sums; a missing wait would show."""
    eager = make_metadata()
    captured = eager.create_cuda_graph_metadata(batch_size)
    x = torch.randn(batch_size, HIDDEN, device=DEVICE, dtype=DTYPE)
    positions = torch.zeros(batch_size, dtype=torch.int64, device=DEVICE)
    captured.prepare(AttentionBatch(0, [], [], []))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        forward(layers, x, positions, captured)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = forward(layers, x, positions, captured)
    for length in (1, 40, 64, 65, 300, 700):
        requests = max(1, batch_size - 1)
        lengths = [length + row for row in range(requests)]
        x.normal_()
        positions[:requests].copy_(torch.tensor(lengths) - 1)
        batch = decode_batch(lengths)
        cache_before = eager.kv_cache.clone()
        captured.prepare(batch)
        graph.replay()
        replayed, written = output.clone(), eager.kv_cache.clone()

        missing = batch_size - requests
        padded = AttentionBatch(0, [1] * batch_size, lengths + [1] * missing, batch.page_ids + [[0]] * missing)
        for _ in range(3):
            eager.kv_cache.copy_(cache_before)
            eager.prepare(padded)
            assert torch.equal(forward(layers, x, positions, eager)[:requests], replayed[:requests])
            assert torch.equal(eager.kv_cache[:, 1:], written[:, 1:])

"""The LoRA kernels on a GPU against their references: every rank, many row counts, poisoned outputs."""

import pytest
import torch
from torch import Tensor

from tensorrt_lora.kernels.lora_add import lora_add
from tensorrt_lora.kernels.lora_batch import BIAS_ROW, GAIN_ROW, LoraBatch, LoraBatchBuffers, LoraTables
from tensorrt_lora.kernels.lora_embedding_shrink import lora_embedding_shrink, lora_embedding_shrink_reference
from tensorrt_lora.kernels.lora_expand import lora_expand, lora_expand_reference
from tensorrt_lora.kernels.lora_shrink import lora_shrink, lora_shrink_reference, num_splits
from tests.support.lora_tables import make_lora_batch, make_lora_tables, touched

pytestmark = pytest.mark.gpu

DEVICE = torch.device("cuda")
NUM_SLOTS = 5
# Of delta from the same h: in bf16 a few values round the other way; tf32 would be near 3e-4.
TOLERANCE = {torch.bfloat16: 1e-3, torch.float32: 1e-5}


def ranks_up_to(rank: int) -> list[list[int]]:
    """Three modules, five slots: equal, mixed and untouched; the last slot touches nothing."""
    return [
        [rank, max(rank // 2, 1), 0, rank, 0],
        [rank, 1, rank, 0, 0],
        [rank, max(rank - 1, 1), min(rank, 5), 0, 0],
    ]


def extras_of(ranks: list[list[int]]) -> list[list[int]]:
    """All kinds, with and without a rank; the last slot touches nothing here either."""
    kinds = [BIAS_ROW | GAIN_ROW, GAIN_ROW, BIAS_ROW, 0]
    return [[*((kinds[(module + slot) % 4]) for slot in range(NUM_SLOTS - 1)), 0] for module in range(len(ranks))]


def random_slots(num_tokens: int) -> list[int]:
    generator = torch.Generator().manual_seed(num_tokens)
    return torch.randint(-1, NUM_SLOTS, (num_tokens,), generator=generator).tolist()


def random_rows(num_tokens: int, width: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator(DEVICE).manual_seed(num_tokens)
    return torch.randn((num_tokens, width), device=DEVICE, dtype=dtype, generator=generator)


def poisoned_h(tables: LoraTables, num_tokens: int, splits: int) -> Tensor:
    shape = (splits, tables.num_modules, num_tokens, tables.max_rank)
    return torch.full(shape, torch.nan, device=DEVICE)


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """NaN, which passes no comparison, if either has one."""
    return float((actual.double() - expected.double()).norm() / expected.double().norm().clamp(min=1e-6))


def check_against_references(x: Tensor, tables: LoraTables, batch: LoraBatch) -> None:
    num_tokens, dtype = x.shape[0], x.dtype
    splits = num_splits(num_tokens, x.shape[1], DEVICE)

    h, h_again = poisoned_h(tables, num_tokens, splits), poisoned_h(tables, num_tokens, splits)
    lora_shrink(x, tables, batch, h)
    lora_shrink(x, tables, batch, h_again)
    expected_h = poisoned_h(tables, num_tokens, 1)
    lora_shrink_reference(x, tables, batch, expected_h)
    assert torch.equal(h.isnan(), expected_h.isnan().expand_as(h))
    assert torch.equal(h.nan_to_num(), h_again.nan_to_num())
    assert relative_error(h.sum(0).nan_to_num(), expected_h[0].nan_to_num()) < 1e-4

    width = sum(tables.output_sizes)
    changed = touched(tables, batch.token_slots.tolist())
    delta, delta_again, expected = (torch.full_like(x[:, :1].expand(-1, width), torch.nan) for _ in range(3))
    lora_expand(h, tables, batch, delta, accumulate=False)
    lora_expand(h, tables, batch, delta_again, accumulate=False)
    lora_expand_reference(h, tables, batch, expected, accumulate=False)
    assert torch.equal(delta.isnan(), ~changed)
    assert torch.equal(delta[changed], delta_again[changed])
    assert relative_error(delta[changed], expected[changed]) < TOLERANCE[dtype]

    base = random_rows(num_tokens, width + 16, dtype)
    added, added_later, expected = base.clone(), base.clone(), base.clone()
    lora_expand(h, tables, batch, added[:, 8:-8], accumulate=True)
    lora_add(delta, tables, batch, added_later[:, 8:-8])
    lora_expand_reference(h, tables, batch, expected[:, 8:-8], accumulate=True)
    assert torch.equal(added, added_later)
    assert relative_error(added, expected) < TOLERANCE[dtype]
    unchanged = torch.nn.functional.pad(~changed, (8, 8), value=True)
    assert torch.equal(added[unchanged], base[unchanged])


@pytest.mark.parametrize("with_extras", [False, True])
@pytest.mark.parametrize("rank", [1, 3, 17, 32, 64, 100, 256])
@pytest.mark.parametrize("num_tokens", [1, 7, 64, 129, 1000, 8192])
def test_mixed_batches(num_tokens: int, rank: int, with_extras: bool) -> None:
    ranks = ranks_up_to(rank)
    tables = make_lora_tables(
        in_features=2560,
        output_sizes=[512, 128, 136],
        ranks=ranks,
        extras=extras_of(ranks) if with_extras else None,
        dtype=torch.bfloat16,
        device=DEVICE,
    )
    batch = make_lora_batch(random_slots(num_tokens), NUM_SLOTS, device=DEVICE)
    check_against_references(random_rows(num_tokens, 2560, torch.bfloat16), tables, batch)


@pytest.mark.parametrize("num_tokens", [1, 16, 64, 512])
def test_one_adapter_at_the_size_of_a_32b_projection(num_tokens: int) -> None:
    tables = make_lora_tables(
        in_features=5120,
        output_sizes=[8192, 1024, 1024],
        ranks=[[32] * NUM_SLOTS] * 3,
        max_rank=64,
        dtype=torch.bfloat16,
        device=DEVICE,
    )
    batch = make_lora_batch([3] * num_tokens, NUM_SLOTS, device=DEVICE)
    check_against_references(random_rows(num_tokens, 5120, torch.bfloat16), tables, batch)


@pytest.mark.parametrize("rank", [3, 64, 100])
@pytest.mark.parametrize("num_tokens", [7, 129])
def test_float32_and_widths_that_no_block_divides(num_tokens: int, rank: int) -> None:
    tables = make_lora_tables(
        in_features=333,
        output_sizes=[130, 7],
        ranks=ranks_up_to(rank)[:2],
        extras=extras_of(ranks_up_to(rank)[:2]),
        dtype=torch.float32,
        device=DEVICE,
    )
    batch = make_lora_batch(random_slots(num_tokens), NUM_SLOTS, device=DEVICE)
    x = random_rows(num_tokens, 333, torch.float32)
    check_against_references(x, tables, batch)


@pytest.mark.parametrize("rank", [1, 17, 256])
@pytest.mark.parametrize("num_tokens", [1, 64, 1000])
def test_embedding_shrink(num_tokens: int, rank: int) -> None:
    vocab = 151_936
    ranks = ranks_up_to(rank)[:1]
    tables = make_lora_tables(in_features=vocab, output_sizes=[64], ranks=ranks, dtype=torch.bfloat16, device=DEVICE)
    batch = make_lora_batch(random_slots(num_tokens), NUM_SLOTS, device=DEVICE)
    ids = torch.randint(0, vocab, (num_tokens,), device=DEVICE)
    h, expected = poisoned_h(tables, num_tokens, 1), poisoned_h(tables, num_tokens, 1)
    lora_embedding_shrink(ids, tables, batch, h)
    lora_embedding_shrink_reference(ids, tables, batch, expected)
    assert torch.equal(h.isnan(), expected.isnan())
    assert torch.equal(h.nan_to_num(), expected.nan_to_num())


def test_row_offsets_beyond_32_bits() -> None:
    num_tokens, width = 90_000, 25_600
    tables = make_lora_tables(in_features=128, output_sizes=[width], ranks=[[8]], dtype=torch.bfloat16, device=DEVICE)
    batch = make_lora_batch([-1] * (num_tokens - 3) + [0] * 3, 1, device=DEVICE)
    x = random_rows(num_tokens, 128, torch.bfloat16)
    out = torch.zeros((num_tokens, width), dtype=torch.bfloat16, device=DEVICE)
    h = poisoned_h(tables, num_tokens, 1)
    lora_shrink(x, tables, batch, h)
    lora_expand(h, tables, batch, out, accumulate=True)
    last_rows = make_lora_batch([0] * 3, 1, device=DEVICE)
    expected = torch.zeros((3, width), dtype=torch.bfloat16, device=DEVICE)
    expected_h = poisoned_h(tables, 3, 1)
    lora_shrink_reference(x[-3:], tables, last_rows, expected_h)
    lora_expand_reference(expected_h, tables, last_rows, expected, accumulate=True)
    assert relative_error(out[-3:], expected) < 2e-3
    assert not out[:-3].any()
    added_later, delta = torch.zeros_like(out), torch.zeros_like(out)
    lora_expand(h, tables, batch, delta, accumulate=False)
    lora_add(delta, tables, batch, added_later)
    assert torch.equal(added_later, out)


@pytest.mark.parametrize("accumulate", [True, False])
def test_a_graph_captured_without_adapters_replays_with_any(accumulate: bool) -> None:
    num_tokens = 16
    tables = make_lora_tables(
        in_features=2560,
        output_sizes=[512, 128],
        ranks=ranks_up_to(32)[:2],
        extras=extras_of(ranks_up_to(32)[:2]),
        dtype=torch.bfloat16,
        device=DEVICE,
    )
    buffers = LoraBatchBuffers(max_num_tokens=64, num_slots=NUM_SLOTS, device=DEVICE)
    x = random_rows(num_tokens, 2560, torch.bfloat16)
    base = random_rows(num_tokens, 640, torch.bfloat16)
    out, delta = torch.empty_like(base), torch.empty_like(base)
    h = poisoned_h(tables, num_tokens, num_splits(num_tokens, 2560, DEVICE))

    batch = buffers.write([-1] * num_tokens)

    def step() -> None:
        out.copy_(base)
        lora_shrink(x, tables, batch, h)
        lora_expand(h, tables, batch, out if accumulate else delta, accumulate)
        if not accumulate:
            lora_add(delta, tables, batch, out)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    for token_slots in ([0] * 16, [4, 3, 2, 1, 0, -1] * 2 + [1] * 4, [-1] * 16, [2] + [-1] * 15):
        buffers.write(token_slots)
        graph.replay()
        replayed = out.clone()
        h.fill_(torch.nan)
        step()
        assert torch.equal(replayed, out)
        expected = base.clone()
        lora_expand_reference(h, tables, batch, expected, accumulate=True)
        assert relative_error(replayed, expected) < TOLERANCE[torch.bfloat16]

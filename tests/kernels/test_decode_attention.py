"""Fused decode attention against float64: the reference here, the Triton kernel under test_interpreter.py."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from tensorrt_lora.kernels.decode_attention import HeadNormRope, PageTables, fused_decode_attention
from tensorrt_lora.kernels.decode_attention_config import (
    MAX_FUSED_REQUESTS,
    balanced_slice,
    decode_attention_config,
)
from tensorrt_lora.kernels.decode_attention_workspace import DecodeAttentionWorkspace
from tensorrt_lora.kernels.lora_delta import LoraDelta
from tensorrt_lora.kernels.qk_norm_rope import KvCacheWrite, qk_norm_rope
from tests.support.lora_deltas import ALL_SLOTS, added, make_lora_delta, random_output

EPS = 1e-5
POSITIONS = 600
TOLERANCE = {torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 3e-2}
LENGTHS = [1, 15, 16, 17, 100, 513]
SHAPES = [  # query heads, key heads, head size, page size
    (4, 4, 64, 16),
    (8, 1, 128, 32),
    (6, 2, 64, 64),
    (16, 1, 32, 16),
    (5, 1, 24, 4),
]


@dataclass
class Step:
    """A decode step of requests of `lengths` tokens on scattered pages; what belongs to nobody is NaN."""

    lengths: list[int]
    heads: int
    kv_heads: int
    head_dim: int
    page_size: int
    dtype: torch.dtype = torch.float32
    norm: bool = True
    padding: int = 0
    slice_tokens: int | None = None  # that a program should read; None for what is best
    token_slots: list[int] | None = None  # of the adapters of a delta that is still to be added

    def __post_init__(self) -> None:
        sizes = [self.heads * self.head_dim, self.kv_heads * self.head_dim, self.kv_heads * self.head_dim]
        requests = len(self.lengths)
        self.qkv = torch.randn(requests, sum(sizes)).to(self.dtype)
        self.delta: LoraDelta | None = None
        if self.token_slots is not None:
            self.delta = make_lora_delta(sizes, self.token_slots, self.dtype)
            self.qkv = random_output(self.delta)
        self.q, self.k, self.v = self.qkv.split(sizes, dim=-1)
        counts = [-(-length // self.page_size) for length in self.lengths]
        free = (1 + torch.randperm(sum(counts))).tolist()
        first_padding = requests - self.padding
        self.pages = [
            [0] * count if row >= first_padding else [free.pop() for _ in range(count)]
            for row, count in enumerate(counts)
        ]
        shape = (sum(counts) + 1, 2, self.page_size, self.kv_heads, self.head_dim)
        self.cache = torch.full(shape, torch.nan, dtype=self.dtype)
        for row, length in enumerate(self.lengths):
            for position in range(length - 1):
                page, offset = self.place(row, position)
                self.cache[page, :, offset] = torch.randn(2, self.kv_heads, self.head_dim).to(self.dtype)
        self.slots = torch.tensor(
            [
                page * self.page_size + offset
                for page, offset in (self.place(row, length - 1) for row, length in enumerate(self.lengths))
            ]
        )
        weights = (1 + 0.3 * torch.randn(2, self.head_dim)).to(self.dtype)
        self.norm_rope = HeadNormRope(
            position_ids=torch.tensor(self.lengths) - 1,
            cos_sin_cache=make_table(self.head_dim),
            q_weight=weights[0] if self.norm else None,
            k_weight=weights[1] if self.norm else None,
            eps=EPS,
        )
        self.workspace = DecodeAttentionWorkspace.create(self.cache, self.heads, requests)

    def place(self, row: int, position: int) -> tuple[int, int]:
        return self.pages[row][position // self.page_size], position % self.page_size

    def tables(self) -> PageTables:
        slice_tokens = self.slice_tokens or balanced_slice(sum(self.lengths), self.kv_heads)
        counts = torch.tensor([0] + [len(ids) for ids in self.pages])
        return PageTables(
            indptr=counts.cumsum(0).int(),
            page_ids=torch.tensor([page for ids in self.pages for page in ids], dtype=torch.int32),
            last_page_len=torch.tensor([(length - 1) % self.page_size + 1 for length in self.lengths]).int(),
            slice_tokens=torch.tensor([slice_tokens], dtype=torch.int32),
        )

    def run(self) -> Tensor:
        tables = self.tables()
        return fused_decode_attention(
            self.q, self.k, self.v, self.norm_rope, self.cache, tables, self.workspace, self.delta
        )

    def expected(self) -> tuple[Tensor, Tensor]:
        """(outputs in float64, the cache after the step), by `qk_norm_rope` and a softmax in float64."""
        cache = self.cache.clone()
        q, k, v = self.qkv.clone().split([self.q.shape[1], self.k.shape[1], self.v.shape[1]], dim=-1)
        how = self.norm_rope
        write = KvCacheWrite(v, cache, self.slots)
        weights = (how.q_weight, how.k_weight)
        qk_norm_rope(q, k, how.position_ids, how.cos_sin_cache, self.head_dim, *weights, EPS, write, self.delta)
        rows = []
        group = self.heads // self.kv_heads
        for row, length in enumerate(self.lengths):
            keys, values = (
                cache[self.pages[row], part].flatten(0, 1)[:length].double().repeat_interleave(group, dim=1)
                for part in (0, 1)
            )
            query = q[row].view(self.heads, self.head_dim).double()
            weights = (torch.einsum("hd,nhd->hn", query, keys) / self.head_dim**0.5).softmax(dim=-1)
            rows.append(torch.einsum("hn,nhd->hd", weights, values).flatten())
        return torch.stack(rows), cache


def make_table(head_dim: int) -> Tensor:
    frequencies = 100.0 ** -(torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angles = torch.outer(torch.arange(POSITIONS, dtype=torch.float64), frequencies)
    return torch.cat((angles.cos(), angles.sin()), dim=-1).float()


def assert_right(step: Step) -> Tensor:
    before = step.qkv.clone()
    expected, expected_cache = step.expected()
    actual = step.run()
    live = len(step.lengths) - step.padding
    tolerance = TOLERANCE[step.dtype]
    assert actual.shape == step.q.shape and actual.is_contiguous() and actual.dtype == step.dtype
    torch.testing.assert_close(actual[:live].double(), expected[:live], rtol=tolerance, atol=tolerance)
    # The order of a sum of squares is the same on a device only.
    torch.testing.assert_close(
        step.cache[1:], expected_cache[1:], rtol=tolerance / 10, atol=tolerance / 10, equal_nan=True
    )
    assert torch.equal(step.qkv, before)
    assert step.workspace.counters.eq(0).all()
    return actual


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "-".join(map(str, shape)))
def test_equals_float64(shape: tuple[int, int, int, int]) -> None:
    assert_right(Step([17, 1, 130], *shape))


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_dtypes(dtype: torch.dtype) -> None:
    assert_right(Step(LENGTHS, 8, 2, 64, 16, dtype=dtype))


@pytest.mark.parametrize("length", LENGTHS)
def test_one_request_without_norms(length: int) -> None:
    assert_right(Step([length], 8, 2, 64, 16, norm=False))


@pytest.mark.parametrize("slice_tokens", [1, 64, 100, 128, 200, 5000])
def test_slices_of_several_tiles(slice_tokens: int) -> None:
    assert_right(Step([513, 129, 64, 65, 63, 128], 2, 1, 32, 16, slice_tokens=slice_tokens))


def test_no_more_slices_than_there_are_programs_for() -> None:
    """Many pairs of request and key head have two at most."""
    assert_right(Step([1, 580] + [2] * 9, 32, 32, 16, 16, slice_tokens=64))


def test_padding_rows_share_a_place() -> None:
    assert_right(Step([70, 33, 1, 1, 1], 4, 2, 32, 16, padding=3))


def test_a_request_does_not_depend_on_its_neighbours() -> None:
    step = Step([40, 300, 17], 4, 2, 32, 16)
    together = step.run()
    step.qkv[0], step.qkv[2] = 7.0, -5.0
    step.cache[step.pages[0]] = torch.nan
    assert torch.equal(step.run()[1], together[1])


@pytest.mark.parametrize(
    ("shape", "dtype", "norm"),
    [
        ((8, 1, 128, 32), torch.float16, True),
        ((4, 2, 64, 16), torch.float32, False),
        ((5, 1, 24, 4), torch.float32, True),
    ],
)
def test_a_delta_is_added_as_by_lora_add(shape: tuple[int, int, int, int], dtype: torch.dtype, norm: bool) -> None:
    lengths = [17, 1, 80, 5, 64, 65, 2, 3, 16, 9, 1, 70]
    step = Step(lengths, *shape, dtype=dtype, norm=norm, token_slots=ALL_SLOTS)
    cache = step.cache.clone()
    output, with_delta = assert_right(step), step.cache
    assert step.delta is not None
    # The same step, of a projection with its delta.
    step.qkv.copy_(added(step.delta, step.qkv))
    step.cache, step.delta = cache, None
    assert torch.equal(step.run(), output)
    torch.testing.assert_close(with_delta, step.cache, rtol=0, atol=0, equal_nan=True)


def test_no_requests() -> None:
    empty = torch.zeros(0, 64)
    cache = torch.zeros(2, 2, 16, 2, 16)
    tables = PageTables(*(torch.zeros(size, dtype=torch.int32) for size in (1, 0, 0, 1)))
    how = HeadNormRope(torch.zeros(0, dtype=torch.int64), make_table(16), None, None, EPS)
    workspace = DecodeAttentionWorkspace.create(cache, 4, 1)
    assert fused_decode_attention(empty, empty[:, :32], empty[:, :32], how, cache, tables, workspace).shape == (0, 64)


def test_the_scores_largest_key_may_be_anywhere() -> None:
    """Slices whose scores lie far below the largest one add next to nothing, and no NaN."""
    for position in (0, 77, 298, 299):
        step = Step([300], 2, 1, 32, 16, norm=False)
        if position < 299:
            page, offset = step.place(0, position)
            step.cache[page, 0, offset] *= 60
        else:
            step.k.mul_(60)
        assert_right(step)


@pytest.mark.parametrize("kv_heads", [1, 2, 3, 8, 32])
def test_configurations(kv_heads: int) -> None:
    for requests in range(1, MAX_FUSED_REQUESTS + 1):
        splits = decode_attention_config(requests, kv_heads, 128, 2**20).splits
        assert splits & (splits - 1) == 0 and 2 <= splits <= 16
        assert splits >= decode_attention_config(requests + 1, kv_heads, 128, 2**20).splits
    assert decode_attention_config(1, kv_heads, 128, 60).splits == 1


def test_all_programs_read_about_the_same() -> None:
    assert balanced_slice(10, 8) == 64, "a tile at least"
    assert balanced_slice(64 * 384, 8) == 768, "so that nothing is divided"
    assert balanced_slice(8 * 384, 8) == 96, "so that each request is divided by four"
    assert balanced_slice(30_000, 8) == 937

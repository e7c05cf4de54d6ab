"""qk_norm_rope against float64: the reference here, the Triton kernel under test_interpreter.py."""

import pytest
import torch
from torch import Tensor

from tensorrt_lora.kernels.qk_norm_rope import KvCacheWrite, qk_norm_rope
from tests.support.lora_deltas import ALL_SLOTS, added, make_lora_delta, random_output, same_bits

EPS = 1e-5
POSITIONS, PAGE_SIZE, PAGES = 50, 4, 40
SHAPES = [  # tokens, query heads, key heads, head size
    (0, 6, 2, 16),
    (1, 1, 1, 2),
    (1, 6, 1, 128),
    (7, 9, 3, 24),
    (3, 16, 8, 80),
    (70, 6, 2, 16),
]
DTYPES = [(torch.float32, 5e-6), (torch.bfloat16, 3e-2)]


def make_table(head_dim: int) -> Tensor:
    frequencies = 100.0 ** -(torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angles = torch.outer(torch.arange(POSITIONS, dtype=torch.float64), frequencies)
    return torch.cat((angles.cos(), angles.sin()), dim=-1).float()


def make_qkv(tokens: int, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> list[Tensor]:
    """A fused projection's output, and its q, k and v: strided views."""
    sizes = [heads * head_dim, kv_heads * head_dim, kv_heads * head_dim]
    qkv = (2 * torch.randn(tokens, sum(sizes))).to(dtype)
    return [qkv, *qkv.split(sizes, dim=-1)]


def expected_heads(x: Tensor, position_ids: Tensor, table: Tensor, head_dim: int, weight: Tensor | None) -> Tensor:
    """In float64; each pair (i, i + D/2) is a complex number, multiplied by cos + i sin."""
    heads = x.double().unflatten(-1, (-1, head_dim))
    if weight is not None:
        heads = heads / torch.sqrt(heads.pow(2).mean(-1, keepdim=True) + EPS) * weight.double()
    half = head_dim // 2
    factors = torch.complex(table[position_ids, :half].double(), table[position_ids, half:].double())
    turned = torch.complex(heads[..., :half], heads[..., half:]) * factors[:, None]
    return torch.cat((turned.real, turned.imag), dim=-1).flatten(1)


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize(("tokens", "heads", "kv_heads", "head_dim"), SHAPES)
@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
def test_heads_are_normalised_and_rotated_where_they_lie(
    tokens: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    tolerance: float,
    norm: bool,
) -> None:
    qkv, q, k, v = make_qkv(tokens, heads, kv_heads, head_dim, dtype)
    table, position_ids = make_table(head_dim), torch.randint(0, POSITIONS, (tokens,))
    q_weight, k_weight = (1 + 0.3 * torch.randn(2, head_dim)).to(dtype) if norm else (None, None)
    expected = [
        expected_heads(q, position_ids, table, head_dim, q_weight),
        expected_heads(k, position_ids, table, head_dim, k_weight),
        v.double(),
    ]
    qk_norm_rope(q, k, position_ids, table, head_dim, q_weight, k_weight, EPS)
    torch.testing.assert_close(qkv.double(), torch.cat(expected, dim=-1), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("index_dtype", [torch.int64, torch.int32])
def test_separate_tensors_with_odd_strides(index_dtype: torch.dtype) -> None:
    head_dim, table = 16, make_table(16)
    wide_q, wide_k = torch.randn(5, 3 * 16 + 7), torch.randn(5, 2 * 16 + 3)
    before_q, before_k = wide_q.clone(), wide_k.clone()
    q, k = wide_q[:, 5:-2], wide_k[:, 3:]
    position_ids = torch.randint(0, POSITIONS, (5,), dtype=index_dtype)
    q_weight, k_weight = torch.randn(2, head_dim)
    expected_q = expected_heads(q, position_ids, table, head_dim, q_weight)
    expected_k = expected_heads(k, position_ids, table, head_dim, k_weight)
    qk_norm_rope(q, k, position_ids, table, head_dim, q_weight, k_weight, EPS)
    torch.testing.assert_close(q.double(), expected_q, rtol=5e-6, atol=5e-6)
    torch.testing.assert_close(k.double(), expected_k, rtol=5e-6, atol=5e-6)
    assert torch.equal(wide_q[:, :5], before_q[:, :5]) and torch.equal(wide_q[:, -2:], before_q[:, -2:])
    assert torch.equal(wide_k[:, :3], before_k[:, :3])


@pytest.mark.parametrize(("tokens", "heads", "kv_heads", "head_dim"), SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_keys_and_values_go_to_their_cache_slots(
    tokens: int, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype
) -> None:
    _, q, k, v = make_qkv(tokens, heads, kv_heads, head_dim, dtype)
    table, position_ids = make_table(head_dim), torch.randint(0, POSITIONS, (tokens,))
    cache = torch.randn(PAGES, 2, PAGE_SIZE, kv_heads, head_dim).to(dtype)
    expected = cache.clone()
    slots = PAGE_SIZE + torch.randperm((PAGES - 1) * PAGE_SIZE)[:tokens]
    weight = torch.ones(head_dim, dtype=dtype)
    write = KvCacheWrite(v, cache, slots)
    qk_norm_rope(q, k, position_ids, table, head_dim, weight, weight, EPS, write)
    for token, slot in enumerate(slots.tolist()):
        page, offset = divmod(slot, PAGE_SIZE)
        expected[page, 0, offset] = k[token].unflatten(-1, (kv_heads, head_dim))
        expected[page, 1, offset] = v[token].unflatten(-1, (kv_heads, head_dim))
    assert torch.equal(cache, expected)


def test_position_zero_is_not_rotated() -> None:
    qkv, q, k, _ = make_qkv(3, 2, 1, 8, torch.float32)
    before = qkv.clone()
    qk_norm_rope(q, k, torch.tensor([0, 7, 19]), make_table(8), 8, None, None, EPS)
    assert torch.equal(qkv[0], before[0])
    assert not torch.equal(qkv[1:], before[1:])


def test_scores_depend_on_the_distance_only() -> None:
    table = make_table(16)
    q, k = torch.randn(1, 16).repeat(4, 1), torch.randn(1, 16).repeat(4, 1)
    for x, position_ids in ((q, [5, 15, 35, 49]), (k, [2, 12, 32, 46])):
        qk_norm_rope(x, x[:, :0], torch.tensor(position_ids), table, 16, None, None, EPS)
    scores = (q * k).sum(-1)
    torch.testing.assert_close(scores, scores[:1].expand(4), rtol=1e-4, atol=1e-4)


def test_epsilon_bounds_the_norm_of_a_small_head() -> None:
    q, weight = torch.zeros(1, 8), torch.ones(8)
    q[0, 0] = 1e-4
    qk_norm_rope(q, q.clone(), torch.tensor([0]), make_table(8), 8, weight, weight, EPS)
    assert q[0, 0].item() == pytest.approx(1e-4 / (1e-8 / 8 + EPS) ** 0.5, rel=1e-5)


@pytest.mark.parametrize("token_slots", [[], [-1], [3], [5], ALL_SLOTS], ids=lambda slots: f"{slots}")
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(6, 1, 128), (9, 3, 24), (16, 9, 64)])
@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_delta_is_added_as_by_lora_add(
    dtype: torch.dtype, norm: bool, heads: int, kv_heads: int, head_dim: int, token_slots: list[int]
) -> None:
    tokens, sizes = len(token_slots), [heads * head_dim, kv_heads * head_dim, kv_heads * head_dim]
    delta = make_lora_delta(sizes, token_slots, dtype)
    qkv = random_output(delta)
    table, position_ids = make_table(head_dim), torch.randint(0, POSITIONS, (tokens,))
    q_weight, k_weight = (1 + 0.3 * torch.randn(2, head_dim)).to(dtype) if norm else (None, None)
    cache = torch.randn(PAGES, 2, PAGE_SIZE, kv_heads, head_dim).to(dtype)
    cache_slots = PAGE_SIZE + torch.randperm((PAGES - 1) * PAGE_SIZE)[:tokens]

    expected, expected_cache = added(delta, qkv), cache.clone()
    q, k, v = expected.split(sizes, dim=-1)
    write = KvCacheWrite(v, expected_cache, cache_slots)
    qk_norm_rope(q, k, position_ids, table, head_dim, q_weight, k_weight, EPS, write)

    base_v = qkv[:, -sizes[2] :].clone()
    q, k, v = qkv.split(sizes, dim=-1)
    write = KvCacheWrite(v, cache, cache_slots)
    qk_norm_rope(q, k, position_ids, table, head_dim, q_weight, k_weight, EPS, write, delta)
    assert same_bits(qkv[:, : -sizes[2]], expected[:, : -sizes[2]])
    assert same_bits(cache, expected_cache)
    assert same_bits(v, base_v), "only the cache has the values' delta"

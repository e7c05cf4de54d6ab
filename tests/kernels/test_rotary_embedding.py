import pytest
import torch

from tensorrt_lora.kernels.rotary_embedding import apply_rotary_embedding


def make_cache(positions: int, head_dim: int) -> torch.Tensor:
    frequencies = 100.0 ** -(torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angles = torch.outer(torch.arange(positions, dtype=torch.float64), frequencies)
    return torch.cat((angles.cos(), angles.sin()), dim=-1).float()


def rotate_as_complex(
    x: torch.Tensor, position_ids: torch.Tensor, cache: torch.Tensor, head_dim: int
) -> torch.Tensor:
    """Each pair (i, i + D/2) is a complex number, multiplied by cos + i sin."""
    heads = x.double().view(x.shape[0], -1, head_dim)
    half = head_dim // 2
    factors = torch.complex(cache[position_ids, :half].double(), cache[position_ids, half:].double())
    turned = torch.complex(heads[..., :half], heads[..., half:]) * factors[:, None]
    return torch.cat((turned.real, turned.imag), dim=-1).view(x.shape)


@pytest.mark.parametrize(
    ("tokens", "heads", "kv_heads", "head_dim"), [(1, 1, 1, 2), (5, 6, 2, 16), (3, 4, 4, 6)]
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 2e-2)])
def test_rotation_in_place(
    tokens: int, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, tolerance: float
) -> None:
    cache = make_cache(50, head_dim)
    position_ids = torch.randint(0, 50, (tokens,))
    q = torch.randn(tokens, heads * head_dim).to(dtype)
    k = torch.randn(tokens, kv_heads * head_dim).to(dtype)
    expected = [rotate_as_complex(x, position_ids, cache, head_dim) for x in (q, k)]
    apply_rotary_embedding(q, k, position_ids, cache, head_dim)
    for actual, wanted in zip((q, k), expected, strict=True):
        torch.testing.assert_close(actual.double(), wanted, rtol=tolerance, atol=tolerance)


def test_slices_of_a_fused_projection_are_rotated_where_they_lie() -> None:
    cache = make_cache(20, 8)
    position_ids = torch.tensor([0, 7, 19])
    qkv = torch.randn(3, 16 + 8 + 8)
    before = qkv.clone()
    q, k, _ = qkv.split((16, 8, 8), dim=-1)
    expected_q, expected_k = (rotate_as_complex(x, position_ids, cache, 8) for x in (q, k))
    apply_rotary_embedding(q, k, position_ids, cache, 8)
    torch.testing.assert_close(qkv[:, :16].double(), expected_q, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(qkv[:, 16:24].double(), expected_k, rtol=1e-6, atol=1e-6)
    assert torch.equal(qkv[:, 24:], before[:, 24:])
    assert torch.equal(qkv[0], before[0]), "position 0 is not rotated"


def test_scores_depend_on_the_distance_only() -> None:
    cache = make_cache(64, 16)
    q, k = torch.randn(1, 16).expand(4, -1).clone(), torch.randn(1, 16).expand(4, -1).clone()
    apply_rotary_embedding(q, k.clone(), torch.tensor([5, 15, 35, 63]), cache, 16)
    apply_rotary_embedding(torch.zeros(4, 16), k, torch.tensor([2, 12, 32, 60]), cache, 16)
    scores = (q * k).sum(-1)
    torch.testing.assert_close(scores, scores[:1].expand(4), rtol=1e-4, atol=1e-4)

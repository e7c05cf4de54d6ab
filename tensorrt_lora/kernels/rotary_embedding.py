"""Rotary position embedding applied to queries and keys, in place.

Called by `RotaryEmbedding`. Pairs are (i, i + D/2): "NeoX style", the layout of Hugging Face checkpoints.
Source: Su et al., "RoFormer" (2021).
"""

import torch


def apply_rotary_embedding(
    q: torch.Tensor, k: torch.Tensor, position_ids: torch.Tensor, cos_sin_cache: torch.Tensor, head_dim: int
) -> None:
    """Rotate every head of `q` and `k` by its token's position, in place; arithmetic in float32.

    Args:
        q: [T, H * D], rows may be strided.
        k: [T, K * D], likewise.
        position_ids: [T] int64 (or int32).
        cos_sin_cache: [positions, D] float32: D/2 cosines, then D/2 sines.
        head_dim: D.
    """
    _apply_rotary_embedding_reference(q, k, position_ids, cos_sin_cache, head_dim)


def _apply_rotary_embedding_reference(
    q: torch.Tensor, k: torch.Tensor, position_ids: torch.Tensor, cos_sin_cache: torch.Tensor, head_dim: int
) -> None:
    cos, sin = cos_sin_cache.index_select(0, position_ids).unsqueeze(1).chunk(2, dim=-1)
    for x in (q, k):
        heads = x.view(x.shape[0], -1, head_dim)
        first, second = heads.float().chunk(2, dim=-1)
        rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
        heads.copy_(rotated)

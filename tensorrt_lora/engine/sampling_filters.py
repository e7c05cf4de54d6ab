"""Top-k, top-p, min-p and the draw: the maths of random sampling, on any device, without a host sync.

Called by the sampler, in this order. Scores are fp32 [n, vocab], finite or -inf with at least one finite in a
row; a filter sets what it drops to -inf. Meanings are those of transformers' TopKLogitsWarper,
TopPLogitsWarper and MinPLogitsWarper.

Sums over the vocabulary are taken over weights in fixed point. Integer sums are exact, hence the same in any
order: what a row draws does not depend on the batch that it is in.
"""

import torch

_WEIGHT_BITS = 40  # of the likeliest token; 2**23 such tokens fit in int64
_MINUS_INF = float("-inf")


def apply_top_k(scores: torch.Tensor, top_k: torch.Tensor, max_top_k: int) -> torch.Tensor:
    """Keep the k best scores of each row, and all that equal the k-th.

    Args:
        top_k: int64 [n, 1], 0 keeps all.
        max_top_k: the largest of them, 1 to vocab.
    """
    best = scores.topk(max_top_k, dim=-1).values
    threshold = best.gather(-1, (top_k - 1).clamp(min=0))
    return scores.masked_fill((scores < threshold) & (top_k > 0), _MINUS_INF)


def apply_top_p(scores: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Keep the smallest set of best tokens whose probability reaches p, never fewer than one; ties favour
    lower ids.

    Args:
        top_p: float64 [n, 1] in (0, 1]; 1 keeps all.
    """
    ordered, token_ids = scores.sort(dim=-1, descending=True, stable=True)
    weights = _fixed_point_weights(ordered)
    cumulative = weights.cumsum(dim=-1)
    total = cumulative[:, -1:].double()
    better = (cumulative - weights).double()  # the weight of all tokens before this one
    dropped_in_order = (better >= top_p * total) & (top_p < 1.0)
    dropped = torch.zeros_like(dropped_in_order).scatter(-1, token_ids, dropped_in_order)
    return scores.masked_fill(dropped, _MINUS_INF)


def apply_min_p(scores: torch.Tensor, min_p: torch.Tensor) -> torch.Tensor:
    """Keep tokens at least `min_p` times as likely as the likeliest.

    Args:
        min_p: fp32 [n, 1] in [0, 1]; 0 keeps all.
    """
    return scores.masked_fill(_relative_probabilities(scores) < min_p, _MINUS_INF)


def draw_tokens(scores: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Inverse-CDF draws from softmax(scores), over the vocabulary in id order.

    Args:
        uniforms: float64 [n] in [0, 1).

    Returns:
        int64 [n]
    """
    cumulative = _fixed_point_weights(scores).cumsum(dim=-1)
    total = cumulative[:, -1:]
    target = torch.minimum((uniforms[:, None] * total.double()).long(), total - 1)
    drawn = torch.searchsorted(cumulative, target, right=True).squeeze(-1)
    # A row without any finite score has no sum to search in; its id must still lie inside the embedding.
    return drawn.clamp(max=scores.shape[-1] - 1)


def _relative_probabilities(scores: torch.Tensor) -> torch.Tensor:
    return (scores - scores.amax(dim=-1, keepdim=True)).exp()


def _fixed_point_weights(scores: torch.Tensor) -> torch.Tensor:
    """Probabilities relative to the likeliest token in units of 2**-40, int64 [n, vocab]."""
    return (_relative_probabilities(scores) * 2.0**_WEIGHT_BITS).long()

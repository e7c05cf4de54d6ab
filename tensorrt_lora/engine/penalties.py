"""Repetition, presence and frequency penalties, applied where a row has seen a token.

Called by the sampler. Repetition is transformers' (CTRL, arXiv 1909.05858): over prompt and output, positive
logits are divided and negative ones multiplied. Presence and frequency are OpenAI's: over the output,
subtracted once and per occurrence.
"""

import torch

from tensorrt_lora.engine.sampling_batch import PenaltyEntries


def apply_penalties(scores: torch.Tensor, entries: PenaltyEntries) -> None:
    """Change `scores` (fp32 [n, vocab]) in place; repetition first."""
    index = (entries.rows, entries.token_ids)
    seen = scores[index]
    seen = torch.where(seen > 0, seen / entries.repetition, seen * entries.repetition)
    seen = seen - entries.presence * (entries.counts > 0) - entries.frequency * entries.counts
    scores.index_put_(index, seen)

"""Log-probabilities of tokens with their ranks: on the device, in one int64 table, and as dicts on the host.

Called by the sampler for generated tokens and by `prompt_logprobs` for given ones. Always of the raw logits
in fp32: before penalties, masks, temperature and filters, so that they say what the model thinks and compare
across settings.
"""

import numpy as np
import torch

from tensorrt_lora.sampling_params import Logprob


def logprob_table(logits: torch.Tensor, token_ids: torch.Tensor, top: int) -> torch.Tensor:
    """Log-probabilities of one token in each row, and of the row's `top` best, with no host sync.

    Args:
        logits: fp32 [n, vocab], finite.
        token_ids: int64 [n].
        top: most that a row wants, 0 for none.

    Returns:
        int64 [n, 2 + 2 * k], k = min(top, vocab): rank (1-based; tokens with equal logits share the best), k
        token ids, and the float64 bits of the log-probabilities of the token and of those k. Read by
        `logprob_dict`.
    """
    normalizer = logits.logsumexp(dim=-1, keepdim=True)
    chosen = logits.gather(-1, token_ids[:, None])
    rank = (logits > chosen).sum(dim=-1, keepdim=True) + 1
    best, best_ids = logits.topk(min(top, logits.shape[-1]), dim=-1)
    values = torch.cat([chosen, best], dim=-1) - normalizer
    return torch.cat([rank, best_ids, values.double().view(torch.int64)], dim=-1)


def logprob_dict(token_id: int, table_row: np.ndarray, top: int) -> dict[int, Logprob]:
    """The row's token first, then the `top` best that are not the token itself.

    Args:
        table_row: int64 [2 + 2 * k], one row of `logprob_table` on the host.
        top: what this row wants, possibly fewer than k.
    """
    most = table_row.shape[0] // 2 - 1
    values = table_row[1 + most :].view(np.float64)
    result = {token_id: Logprob(float(values[0]), int(table_row[0]))}
    for index in range(min(top, most)):
        result.setdefault(int(table_row[1 + index]), Logprob(float(values[1 + index]), index + 1))
    return result

"""Log-probabilities of a prompt's own tokens, gathered chunk by chunk.

Called by the executor with the logits that the model engine kept for `LlmRequest.prompt_logprob_positions`.
"""

import torch

from tensorrt_lora.engine.finite_logits import finite_rows, not_finite_error
from tensorrt_lora.engine.llm_request import LlmRequest
from tensorrt_lora.engine.token_logprobs import logprob_dict, logprob_table

_ROWS_AT_ONCE = 256  # bounds the fp32 copy of the logits: 150 MB at a vocabulary of 150,000


def extend_prompt_logprobs(request: LlmRequest, positions: range, logits: torch.Tensor) -> str | None:
    """Append to `request.prompt_logprobs` what the logits at `positions` say of the prompt tokens behind
    them.

    The first entry of the list is None: nothing precedes the first token. Costs a host sync for every 256
    positions.

    Args:
        positions: what `request.prompt_logprob_positions` gave for the chunk, in one piece or in several.
        logits: [len(positions), vocab], any float dtype.

    Returns:
        An error text if a row is not finite, with nothing appended for that block; else None.
    """
    top = request.sampling_params.prompt_logprobs
    assert top is not None and logits.shape[0] == len(positions)
    if not request.prompt_logprobs:
        request.prompt_logprobs.append(None)
    assert positions.start == len(request.prompt_logprobs) - 1, "prompt log-probabilities come in order"
    for offset in range(0, len(positions), _ROWS_AT_ONCE):
        block = positions[offset : offset + _ROWS_AT_ONCE]
        rows = logits[offset : offset + len(block)].float()
        next_tokens = request.tokens_between(block.start + 1, block.stop + 1)
        table = logprob_table(rows, torch.tensor(next_tokens, dtype=torch.int64, device=rows.device), top)
        host = torch.cat([table, finite_rows(rows)[:, None].long()], dim=-1).cpu().numpy()
        for position, token_id, row in zip(block, next_tokens, host, strict=True):
            if not row[-1]:
                return not_finite_error(request, position + 1)
            request.prompt_logprobs.append(logprob_dict(token_id, row[:-1], top))
    return None

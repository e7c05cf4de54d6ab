"""Log-probabilities of a prompt's own tokens, gathered chunk by chunk.

Called by `StepRunner` with the logits that the model engine kept for `LlmRequest.prompt_logprob_positions`.
"""

import torch

from tensorrt_lora.engine.finite_logits import finite_rows, not_finite_error
from tensorrt_lora.engine.llm_request import LlmRequest
from tensorrt_lora.engine.token_logprobs import logprob_dict, logprob_table


def extend_prompt_logprobs(request: LlmRequest, positions: range, logits: torch.Tensor) -> str | None:
    """Append to `request.prompt_logprobs` what the logits at `positions` say of the prompt tokens behind
    them.

    The first entry of the list is None: nothing precedes the first token. Costs a host sync.

    Args:
        positions: what `request.prompt_logprob_positions` gave for the chunk, in one piece or in several, which
            bounds the memory that logits take.
        logits: [len(positions), vocab], any float dtype.

    Returns:
        An error text if a row is not finite, with nothing appended for that row and those behind it; else None.
    """
    top = request.sampling_params.prompt_logprobs
    assert top is not None and logits.shape[0] == len(positions)
    if not request.prompt_logprobs:
        request.prompt_logprobs.append(None)
    assert positions.start == len(request.prompt_logprobs) - 1, "prompt log-probabilities come in order"
    rows = logits.float()
    next_tokens = request.tokens_between(positions.start + 1, positions.stop + 1)
    table = logprob_table(rows, torch.tensor(next_tokens, dtype=torch.int64, device=rows.device), top)
    host = torch.cat([table, finite_rows(rows)[:, None].long()], dim=-1).cpu().numpy()
    for position, token_id, row in zip(positions, next_tokens, host, strict=True):
        if not row[-1]:
            return not_finite_error(request, position + 1)
        request.prompt_logprobs.append(logprob_dict(token_id, row[:-1], top))
    return None

"""Which rows of logits can be used, and what the user of one that cannot is told.

Called wherever logits are read. NaN and infinities come from broken weights or overflow; such a row fails
alone.
"""

import torch

from tensorrt_lora.engine.llm_request import LlmRequest


def finite_rows(logits: torch.Tensor) -> torch.Tensor:
    """Whether all logits of a row are finite, bool [n] for logits [n, vocab]; one pass, no host sync."""
    lowest, highest = logits.aminmax(dim=-1)  # NaN goes through both, and compares as False
    return (lowest > -torch.inf) & (highest < torch.inf)


def not_finite_error(request: LlmRequest, position: int) -> str:
    """The error text for logits of the token at `position`."""
    adapter = request.adapter
    if adapter is None:
        model = "the base model"
    else:
        model = f"the combination {adapter.name}" if adapter.parts else f"adapter id {adapter.adapter_id}"
    return (
        f"request {request.request_id}: the logits for position {position} are not finite; "
        f"{model} gave NaN or infinite values"
    )

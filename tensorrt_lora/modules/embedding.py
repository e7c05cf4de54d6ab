"""Token embedding and language-model head, which share one weight in a tied model."""

import torch
from torch import nn
from torch.nn import functional


class Embedding(nn.Module):
    """Token ids to vectors; weight [vocab, hidden] left uninitialised."""

    def __init__(
        self, *, vocab_size: int, hidden_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(
            torch.empty((vocab_size, hidden_size), dtype=dtype, device=device), requires_grad=False
        )

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """[T] int -> a new tensor [T, hidden]."""
        return functional.embedding(input_ids, self.weight)


class LMHead(nn.Module):
    """Hidden states to logits; weight [vocab, hidden], or the embedding's own parameter when tied to it."""

    def __init__(
        self,
        *,
        vocab_size: int,
        hidden_size: int,
        dtype: torch.dtype,
        device: torch.device,
        tied_to: Embedding | None = None,
    ) -> None:
        super().__init__()
        if tied_to is not None:
            self.weight = tied_to.weight
        else:
            self.weight = nn.Parameter(
                torch.empty((vocab_size, hidden_size), dtype=dtype, device=device), requires_grad=False
            )

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """[n, hidden] -> [n, vocab]."""
        return functional.linear(hidden_states, self.weight)

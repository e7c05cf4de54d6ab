"""From logits to tokens: one row each, independent of all other rows.

Called by `StepRunner` after each forward. Order: log-probabilities (of the raw logits), penalties, masking of
end and stop tokens below min_tokens and of what a prescribed form forbids; then the best token, or temperature,
top-k, top-p, min-p and a draw. Appends nothing to requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tensorrt_lora.engine.counter_rng import uniform
from tensorrt_lora.engine.finite_logits import finite_rows, not_finite_error
from tensorrt_lora.engine.llm_request import LlmRequest
from tensorrt_lora.engine.penalties import apply_penalties
from tensorrt_lora.engine.sampling_batch import (
    DrawSettings,
    allowed_tokens,
    draw_settings,
    masked_entries,
    penalty_entries,
)
from tensorrt_lora.engine.sampling_filters import apply_min_p, apply_top_k, apply_top_p, draw_tokens
from tensorrt_lora.engine.token_logprobs import logprob_dict, logprob_table
from tensorrt_lora.sampling_params import Logprob
from tensorrt_lora.utils.host_copy import HostCopy


@dataclass(slots=True)
class SampledToken:
    """One row's result; with an `error` the rest means nothing."""

    token_id: int
    logprobs: dict[int, Logprob] | None = None
    error: str | None = None


@dataclass(slots=True)
class PendingSamples:
    """Tokens that are on the device already, while the host has not waited for them.

    Attributes:
        rows: the requests, in order.
        token_ids: int64 [n] on the device.
        table: int64 [n, 2 or more] on its way to the host: token id, whether the logits were finite, then a
            `logprob_table`.
    """

    rows: Sequence[LlmRequest]
    token_ids: torch.Tensor
    table: HostCopy

    def fetch(self) -> list[SampledToken]:
        """Wait for these tokens, not for later steps; the sampler's only sync."""
        host = self.table.wait()
        samples = []
        for request, row in zip(self.rows, host, strict=True):
            token_id, finite, top = int(row[0]), bool(row[1]), request.sampling_params.logprobs
            if not finite:
                samples.append(SampledToken(token_id, error=not_finite_error(request, request.num_tokens)))
            elif top is None:
                samples.append(SampledToken(token_id))
            else:
                samples.append(SampledToken(token_id, logprob_dict(token_id, row[2:], top)))
        return samples


class Sampler:
    """Stateless: a token depends on its row's logits, settings, history, seed and position alone."""

    def sample(self, logits: torch.Tensor, rows: Sequence[LlmRequest]) -> list[SampledToken]:
        """`launch` and `fetch` in one go."""
        return self.launch(logits, rows).fetch()

    @torch.inference_mode()
    def launch(self, logits: torch.Tensor, rows: Sequence[LlmRequest]) -> PendingSamples:
        """Enqueue the work for one step, without a host sync.

        Args:
            logits: [n, vocab], any float dtype; left as they are.
            rows: the n requests, before the new token is appended.
        """
        assert logits.shape[0] == len(rows)
        vocab_size = logits.shape[-1]
        penalties = penalty_entries(rows, logits.device)
        masked = masked_entries(rows, vocab_size, logits.device)
        allowed = allowed_tokens(rows, vocab_size, logits.device)
        settings = draw_settings(rows, vocab_size, logits.device)
        tops = [row.sampling_params.logprobs for row in rows if row.sampling_params.logprobs is not None]
        finite = finite_rows(logits)
        is_plain = penalties is None and masked is None and allowed is None
        if is_plain and settings is None and not tops:
            token_ids = logits.argmax(dim=-1)
            return PendingSamples(rows, token_ids, HostCopy(torch.stack([token_ids, finite], dim=-1)))
        raw = logits.float().masked_fill(~finite[:, None], 0.0)
        scores = raw if is_plain else raw.clone()
        if penalties is not None:
            apply_penalties(scores, penalties)
        if masked is not None:
            scores.index_put_(masked, scores.new_full((), float("-inf")))
        if allowed is not None:
            guided, mask = allowed
            scores[guided] = scores[guided].masked_fill(~mask, float("-inf"))
        token_ids = scores.argmax(dim=-1)
        if settings is not None:
            token_ids = torch.where(settings.greedy, token_ids, _draw(scores, settings))
        columns = [token_ids[:, None], finite[:, None].long()]
        if tops:
            columns.append(logprob_table(raw, token_ids, max(tops)))
        return PendingSamples(rows, token_ids, HostCopy(torch.cat(columns, dim=-1)))


def _draw(scores: torch.Tensor, settings: DrawSettings) -> torch.Tensor:
    """A token for each row from its own distribution, int64 [n]."""
    # Shifted first, so that a small temperature overflows to -inf rather than inf.
    scores = (scores - scores.amax(dim=-1, keepdim=True)) / settings.temperature
    if settings.max_top_k > 0:
        scores = apply_top_k(scores, settings.top_k, settings.max_top_k)
    if settings.top_p is not None:
        scores = apply_top_p(scores, settings.top_p)
    if settings.min_p is not None:
        scores = apply_min_p(scores, settings.min_p)
    return draw_tokens(scores, uniform(settings.seeds, settings.positions))

"""The sampling settings of one step's rows as device tensors.

Built by the sampler from the requests, with copies that do not wait for the device. Settings that no row uses
are None, so that their work is left out; for the rows that do not use them they hold values without effect.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tensorrt_lora.engine.llm_request import LlmRequest
from tensorrt_lora.sampling_params import SamplingParams
from tensorrt_lora.utils.device import pin_memory_available

# Below this temperature the best token's weight leaves nothing to the others, and divisions would overflow.
_MIN_TEMPERATURE = 1e-6
_WITHOUT_EFFECT = SamplingParams(temperature=1.0)  # stands in for greedy rows


@dataclass(slots=True)
class PenaltyEntries:
    """One entry for each (row, token seen): what the penalties change.

    Attributes:
        rows, token_ids: int64 [m], no pair twice.
        counts: fp32 [m], times the token was generated.
        repetition, presence, frequency: fp32 [m], the row's penalties.
    """

    rows: torch.Tensor
    token_ids: torch.Tensor
    counts: torch.Tensor
    repetition: torch.Tensor
    presence: torch.Tensor
    frequency: torch.Tensor


@dataclass(slots=True)
class DrawSettings:
    """What random rows need; greedy rows among them hold values without effect, and their draw is not used.

    Attributes:
        greedy: bool [n].
        temperature: fp32 [n, 1].
        top_k: int64 [n, 1], 0 = all; `max_top_k` is the largest. Likewise top_p float64, min_p fp32, 1 and 0
            = all.
        seeds, positions: int64 [n].
    """

    greedy: torch.Tensor
    temperature: torch.Tensor
    max_top_k: int
    top_k: torch.Tensor
    top_p: torch.Tensor | None
    min_p: torch.Tensor | None
    seeds: torch.Tensor
    positions: torch.Tensor


def draw_settings(rows: Sequence[LlmRequest], vocab_size: int, device: torch.device) -> DrawSettings | None:
    """None if all rows are greedy."""
    greedy = [request.sampling_params.is_greedy for request in rows]
    if all(greedy):
        return None
    params = [_WITHOUT_EFFECT if request.sampling_params.is_greedy else request.sampling_params for request in rows]
    top_k = [min(row.top_k, vocab_size) for row in params]
    top_p = [row.top_p for row in params]
    min_p = [row.min_p for row in params]
    temperature = [max(row.temperature, _MIN_TEMPERATURE) for row in params]
    seeds = [request.seed for request in rows]
    positions = [request.num_tokens for request in rows]
    ints = np.array([seeds, positions, top_k, greedy], dtype=np.int64)
    floats = np.array([temperature, top_p, min_p], dtype=np.float64)
    columns = _to_device(np.concatenate([ints, floats.view(np.int64)]), device)
    device_temperature, device_top_p, device_min_p = columns[4:].view(torch.float64)[:, :, None]
    return DrawSettings(
        greedy=columns[3].bool(),
        temperature=device_temperature.float(),
        max_top_k=max(top_k),
        top_k=columns[2][:, None],
        top_p=device_top_p if min(top_p) < 1.0 else None,
        min_p=device_min_p.float() if max(min_p) > 0.0 else None,
        seeds=columns[0],
        positions=columns[1],
    )


def penalty_entries(rows: Sequence[LlmRequest], device: torch.device) -> PenaltyEntries | None:
    """None if no row has a penalty on anything it has seen."""
    entries = [
        _row_entries(index, request.sampling_params, counts)
        for index, request in enumerate(rows)
        if (counts := request.token_counts)
    ]
    if not entries:
        return None
    table = _to_device(np.concatenate(entries, axis=1), device)
    repetition, presence, frequency = table[3:].view(torch.float64).float()
    return PenaltyEntries(table[0], table[1], table[2].float(), repetition, presence, frequency)


def _row_entries(index: int, params: SamplingParams, counts: dict[int, int]) -> np.ndarray:
    """One row's penalty entries, int64 [6, tokens seen]; the penalties as float64 bits."""
    penalties = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty)
    entries = np.empty((6, len(counts)), dtype=np.int64)
    entries[0] = index
    entries[1] = np.fromiter(counts.keys(), np.int64, len(counts))
    entries[2] = np.fromiter(counts.values(), np.int64, len(counts))
    entries[3:] = np.array(penalties, dtype=np.float64).view(np.int64)[:, None]
    return entries


def masked_entries(
    rows: Sequence[LlmRequest], vocab_size: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """(rows, token ids), int64 [m] each: what rows below their `min_tokens` may not draw; None if nothing."""
    pairs = [
        (index, token_id)
        for index, request in enumerate(rows)
        if len(request.output_token_ids) < request.sampling_params.min_tokens
        for token_id in request.stop_ids
        if token_id < vocab_size
    ]
    if not pairs:
        return None
    row_ids, token_ids = _to_device(np.array(pairs, dtype=np.int64).T.copy(), device)
    return row_ids, token_ids


def allowed_tokens(
    rows: Sequence[LlmRequest], vocab_size: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Rows whose form is prescribed, int64 [m], and what each may draw, bool [m, vocab]; None if there is none."""
    guided = [(index, request.grammar) for index, request in enumerate(rows) if request.grammar is not None]
    if not guided:
        return None
    words = np.stack([np.frombuffer(grammar.bitmask(), dtype=np.int32) for _, grammar in guided])
    bits = torch.arange(32, dtype=torch.int32, device=device)
    allowed = (_to_device(words, device)[:, :, None] >> bits & 1).bool().flatten(1)[:, :vocab_size]
    return _to_device(np.array([index for index, _ in guided], dtype=np.int64), device), allowed


def _to_device(columns: np.ndarray, device: torch.device) -> torch.Tensor:
    """One transfer in stream order; page-locked where that makes it asynchronous."""
    host = torch.from_numpy(columns)
    if pin_memory_available(device):
        host = host.pin_memory()
    return host.to(device, non_blocking=True)

"""Rotary position embedding: the table of cosines and sines that all layers of a model share.

Built with the model and read by `Attention`, which rotates where it normalises heads. Frequencies other than
the default come from transformers: a scaling is served exactly as there, or refused.
"""

import torch
from torch import nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tensorrt_lora.config.model_config import ModelConfig


class RotaryEmbedding(nn.Module):
    """What rotates queries and keys at each position.

    Args:
        config: `rope_parameters` selects the frequencies.
        max_positions: positions 0 .. max_positions - 1 are tabulated.
        device: where the table lives.

    Raises:
        ValueError: the rope type is unknown, changes with the sequence length within `max_positions`, or
            covers only a part of the head.
    """

    cos_sin_cache: torch.Tensor  # [max_positions, D] float32: D/2 cosines, then D/2 sines

    def __init__(self, *, config: ModelConfig, max_positions: int, device: torch.device) -> None:
        super().__init__()
        inv_freq, attention_scaling = _frequencies(config, max_positions)
        if 2 * inv_freq.numel() != config.head_dim:
            raise ValueError(
                f"rotary embedding covers {2 * inv_freq.numel()} of {config.head_dim} head dimensions; "
                "partial rotary embedding is not supported"
            )
        angles = torch.outer(torch.arange(max_positions, dtype=torch.float32), inv_freq)
        table = torch.cat((angles.cos(), angles.sin()), dim=-1) * attention_scaling
        self.register_buffer("cos_sin_cache", table.to(device), persistent=False)


def _frequencies(config: ModelConfig, max_positions: int) -> tuple[torch.Tensor, float]:
    """Inverse frequencies [D / 2] float32, and the factor on cosines and sines."""
    parameters = config.rope_parameters
    rope_type = str(parameters.get("rope_type", "default"))
    if rope_type == "default":
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
        return 1.0 / float(str(parameters["rope_theta"])) ** exponents, 1.0
    if rope_type not in ROPE_INIT_FUNCTIONS:
        known = ", ".join(sorted(["default", *ROPE_INIT_FUNCTIONS]))
        raise ValueError(f"rope type {rope_type!r} is not supported; supported: {known}")
    _check_constant(rope_type, config, max_positions)
    inv_freq, attention_scaling = ROPE_INIT_FUNCTIONS[rope_type](config.hf_config, torch.device("cpu"))
    return inv_freq.float(), float(attention_scaling)


def _check_constant(rope_type: str, config: ModelConfig, max_positions: int) -> None:
    """Refuse frequencies that change as a sequence grows: cached keys keep the rotation of their step."""
    limits = {
        "dynamic": config.max_position_embeddings,
        "longrope": config.rope_parameters.get("original_max_position_embeddings"),
    }
    limit = limits.get(rope_type)
    if isinstance(limit, int) and max_positions > limit:
        raise ValueError(
            f"rope type {rope_type!r} changes its frequencies beyond {limit} positions, which is not "
            f"supported; set max_seq_len to at most {limit} (it is {max_positions})"
        )

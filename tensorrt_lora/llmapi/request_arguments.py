"""The settings that go with prompts: one for all or one for each, and whether this LLM can follow them.

Called by `RequestRunner` before anything runs, so that a wrong call has no effect. What only the engine can know, such
as the longest prompt, is not checked here.
"""

from collections.abc import Sequence
from typing import TypeAlias, TypeVar

from tensorrt_lora.lora_request import LoRARequest
from tensorrt_lora.sampling_params import SamplingParams

SamplingArgument: TypeAlias = SamplingParams | Sequence[SamplingParams | None] | None
LoRAArgument: TypeAlias = LoRARequest | Sequence[LoRARequest | None] | None

T = TypeVar("T", SamplingParams | None, LoRARequest | None)


def one_per_prompt(name: str, value: T | Sequence[T], num_prompts: int) -> list[T]:
    """`value` for every prompt, or a list's values in order. Raises ValueError when the lengths differ."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        return [value] * num_prompts
    if len(value) != num_prompts:
        raise ValueError(
            f"{name} has {len(value)} entries for {num_prompts} prompts: give one for all, or one per prompt"
        )
    return list(value)


def check_sampling_params(params: object, *, has_tokenizer: bool) -> None:
    """Raise ValueError if `params` is no `SamplingParams` or None, or needs a tokenizer that is not there."""
    if params is None:
        return
    if not isinstance(params, SamplingParams):
        raise ValueError(f"sampling_params must be SamplingParams, or None for the defaults, got {params!r}")
    if params.stop and not has_tokenizer:
        raise ValueError(
            f"stop={params.stop!r} is text, but this LLM has no tokenizer: use stop_token_ids, or leave out "
            "skip_tokenizer_init"
        )


def check_lora_request(lora_request: object, *, lora_enabled: bool) -> None:
    """Raise ValueError if `lora_request` is no `LoRARequest` or None, or there is no LoRA."""
    if lora_request is None:
        return
    if not isinstance(lora_request, LoRARequest):
        raise ValueError(f"lora_request must be a LoRARequest, or None for the base model, got {lora_request!r}")
    if not lora_enabled:
        raise ValueError(
            f"adapter {lora_request.lora_name!r} was asked for, but LoRA is off: create the LLM with "
            "lora_config=LoraConfig()"
        )

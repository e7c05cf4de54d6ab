"""The settings that go with prompts: one for all or one for each, and whether this LLM can follow them.

Called by `RequestRunner` before anything runs, so that a wrong call has no effect. What only the engine can know, such
as the longest prompt, is not checked here.
"""

from collections.abc import Sequence
from typing import TypeAlias

from tensorrt_lora.lora_request import LoRARequest, WeightedLoRARequests
from tensorrt_lora.sampling_params import SamplingParams

SamplingArgument: TypeAlias = SamplingParams | Sequence[SamplingParams | None] | None
PromptAdapter: TypeAlias = LoRARequest | WeightedLoRARequests | Sequence[tuple[LoRARequest, float]] | None
"""What one prompt runs with: the base model, an adapter, or a list of (adapter, weight) pairs."""
LoRAArgument: TypeAlias = PromptAdapter | Sequence[PromptAdapter]


def sampling_per_prompt(
    value: SamplingArgument, num_prompts: int, *, has_tokenizer: bool
) -> list[SamplingParams | None]:
    """The sampling parameters of every prompt in order.

    Raises ValueError when a list has another length, or an entry is no `SamplingParams` or None, or needs a tokenizer
    that is not there.
    """
    each = _one_per_prompt("sampling_params", value, num_prompts)
    return [read_sampling_params(one, has_tokenizer=has_tokenizer) for one in each]


def adapter_per_prompt(
    value: LoRAArgument, num_prompts: int, *, lora_enabled: bool
) -> list[LoRARequest | WeightedLoRARequests | None]:
    """The adapter of every prompt in order. A list of (adapter, weight) pairs is one combination, for all prompts.

    Raises ValueError when a list has another length, or an entry is none of the kinds, or there is no LoRA.
    """
    each = [value] * num_prompts if _is_combination(value) else _one_per_prompt("lora_request", value, num_prompts)
    return [read_lora_request(one, lora_enabled=lora_enabled) for one in each]


def read_sampling_params(params: object, *, has_tokenizer: bool) -> SamplingParams | None:
    """One prompt's sampling parameters, as a copy that is checked again and can change no more; ValueError as above.

    A subclass comes back as plain `SamplingParams`: the engine's process might not be able to import it. One with
    fields of its own is refused.
    """
    if params is None:
        return None
    if not isinstance(params, SamplingParams):
        raise ValueError(f"sampling_params must be SamplingParams, or None for the defaults, got {params!r}")
    if params.stop and not has_tokenizer:
        raise ValueError(
            f"stop={params.stop!r} is text, but this LLM has no tokenizer: use stop_token_ids, or leave out "
            "skip_tokenizer_init"
        )
    return SamplingParams.model_validate(dict(params))


def read_lora_request(value: object, *, lora_enabled: bool) -> LoRARequest | WeightedLoRARequests | None:
    """One prompt's adapter, a list of pairs as one object; ValueError as above."""
    if value is None:
        return None
    if isinstance(value, (list, tuple)) and _is_combination(value):
        value = WeightedLoRARequests(tuple(value))
    if not isinstance(value, (LoRARequest, WeightedLoRARequests)):
        raise ValueError(
            "lora_request must be a LoRARequest, a list of (LoRARequest, weight) pairs, or None for the base model, "
            f"got {value!r}"
        )
    if not lora_enabled:
        raise ValueError(
            f"adapter {value.name!r} was asked for, but LoRA is off: create the LLM with lora_config=LoraConfig()"
        )
    return value


def _one_per_prompt(name: str, value: object, num_prompts: int) -> list[object]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        return [value] * num_prompts
    if len(value) != num_prompts:
        raise ValueError(
            f"{name} has {len(value)} entries for {num_prompts} prompts: give one for all, or one per prompt"
        )
    return list(value)


def _is_combination(value: object) -> bool:
    """Whether `value` is a list of pairs: a pair is no prompt's adapter, so this is never a list of one per prompt."""
    return isinstance(value, (list, tuple)) and bool(value) and all(isinstance(entry, tuple) for entry in value)

import pytest

from tensorrt_lora.llmapi.request_arguments import check_lora_request, check_sampling_params, one_per_prompt
from tensorrt_lora.lora_request import LoRARequest
from tensorrt_lora.sampling_params import SamplingParams

ADAPTER = LoRARequest("pirate", 1, "adapters/pirate")


def test_one_for_all_or_one_each() -> None:
    assert one_per_prompt("lora_request", ADAPTER, 2) == [ADAPTER, ADAPTER]
    assert one_per_prompt("lora_request", None, 2) == [None, None]
    assert one_per_prompt("lora_request", [ADAPTER, None], 2) == [ADAPTER, None]
    assert one_per_prompt("lora_request", (None,), 1) == [None]


def test_lengths_must_agree() -> None:
    with pytest.raises(ValueError, match="lora_request has 2 entries for 3 prompts"):
        one_per_prompt("lora_request", [ADAPTER, None], 3)


def test_checks_accept() -> None:
    check_sampling_params(None, has_tokenizer=False)
    check_sampling_params(SamplingParams(stop_token_ids=[3]), has_tokenizer=False)
    check_sampling_params(SamplingParams(stop="x"), has_tokenizer=True)
    check_lora_request(None, lora_enabled=False)
    check_lora_request(ADAPTER, lora_enabled=True)


def test_stop_strings_need_a_tokenizer() -> None:
    with pytest.raises(ValueError, match=r"stop=\['x'\] is text, .* use stop_token_ids"):
        check_sampling_params(SamplingParams(stop="x"), has_tokenizer=False)


def test_adapters_need_lora() -> None:
    with pytest.raises(ValueError, match=r"'pirate' was asked for, but LoRA is off: .*lora_config=LoraConfig"):
        check_lora_request(ADAPTER, lora_enabled=False)


@pytest.mark.parametrize("value", [{"max_tokens": 3}, "greedy", 5])
def test_wrong_types_are_named(value: object) -> None:
    with pytest.raises(ValueError, match="sampling_params must be SamplingParams"):
        check_sampling_params(value, has_tokenizer=True)
    with pytest.raises(ValueError, match="lora_request must be a LoRARequest, or None for the base model"):
        check_lora_request(value, lora_enabled=True)

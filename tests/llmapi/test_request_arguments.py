import pytest

from tensorrt_lora.llmapi.request_arguments import (
    adapter_per_prompt,
    read_lora_request,
    read_sampling_params,
    sampling_per_prompt,
)
from tensorrt_lora.lora_request import LoRARequest, WeightedLoRARequests
from tensorrt_lora.sampling_params import SamplingParams

PIRATE = LoRARequest("pirate", 1, "adapters/pirate")
HAIKU = LoRARequest("haiku", 2, "adapters/haiku")
PAIRS = [(PIRATE, 0.7), (HAIKU, -0.3)]
COMBINED = WeightedLoRARequests(tuple(PAIRS))


def adapters(value: object, num_prompts: int) -> list[object]:
    return adapter_per_prompt(value, num_prompts, lora_enabled=True)


def test_one_for_all_or_one_each() -> None:
    assert adapters(PIRATE, 2) == [PIRATE, PIRATE]
    assert adapters(None, 2) == [None, None]
    assert adapters([PIRATE, None], 2) == [PIRATE, None]
    assert adapters((None,), 1) == [None]
    params = SamplingParams()
    assert sampling_per_prompt([None, params], 2, has_tokenizer=True) == [None, params]


def test_pairs_are_one_combination() -> None:
    assert adapters(PAIRS, 1) == [COMBINED]
    assert adapters(PAIRS, 3) == [COMBINED] * 3
    assert adapters(tuple(PAIRS), 2) == [COMBINED] * 2
    assert adapters(COMBINED, 2) == [COMBINED] * 2
    assert adapters([PAIRS], 1) == [COMBINED]
    assert adapters([PAIRS, None, PIRATE, COMBINED], 4) == [COMBINED, None, PIRATE, COMBINED]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([(PIRATE, 0.7), HAIKU], r"must be a LoRARequest, a list of .* pairs, or None .*, got \(LoRARequest"),
        ([(PIRATE, "0.7"), (HAIKU, 1)], "the weight of adapter 'pirate' must be a finite number, got '0.7'"),
        ([(PIRATE, float("nan")), (HAIKU, 1)], "the weight of adapter 'pirate' must be a finite number, got nan"),
        ([("pirate", 0.7), (HAIKU, 1)], r"holds \(LoRARequest, weight\) pairs, got \('pirate', 0.7\)"),
        ([[], PIRATE], r"must be a LoRARequest, a list of .* pairs, or None .*, got \[\]"),
    ],
)
def test_a_wrong_combination_is_named(value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        adapters(value, 2)


def test_lengths_must_agree() -> None:
    with pytest.raises(ValueError, match="lora_request has 2 entries for 3 prompts"):
        adapters([PIRATE, None], 3)


def test_what_is_accepted() -> None:
    assert read_sampling_params(None, has_tokenizer=False) is None
    read_sampling_params(SamplingParams(stop_token_ids=[3]), has_tokenizer=False)
    read_sampling_params(SamplingParams(stop="x"), has_tokenizer=True)
    assert read_lora_request(None, lora_enabled=False) is None
    assert read_lora_request(PIRATE, lora_enabled=True) is PIRATE


def test_stop_strings_need_a_tokenizer() -> None:
    with pytest.raises(ValueError, match=r"stop=\['x'\] is text, .* use stop_token_ids"):
        read_sampling_params(SamplingParams(stop="x"), has_tokenizer=False)


@pytest.mark.parametrize("value", [PIRATE, PAIRS])
def test_adapters_need_lora(value: object) -> None:
    with pytest.raises(ValueError, match=r"pirate.*' was asked for, but LoRA is off: .*lora_config=LoraConfig"):
        read_lora_request(value, lora_enabled=False)


@pytest.mark.parametrize("value", [{"max_tokens": 3}, "greedy", 5])
def test_wrong_types_are_named(value: object) -> None:
    with pytest.raises(ValueError, match="sampling_params must be SamplingParams"):
        read_sampling_params(value, has_tokenizer=True)
    with pytest.raises(ValueError, match="lora_request must be a LoRARequest, a list of"):
        read_lora_request(value, lora_enabled=True)


class _LongAnswers(SamplingParams):
    max_tokens: int = 500


class _WithNote(SamplingParams):
    note: str = "mine"


def test_sampling_params_are_copied_as_plain_ones() -> None:
    read = read_sampling_params(_LongAnswers(top_k=3), has_tokenizer=True)
    assert type(read) is SamplingParams and read == SamplingParams(max_tokens=500, top_k=3)
    with pytest.raises(ValueError, match="note"):
        read_sampling_params(_WithNote(), has_tokenizer=True)


def test_later_changes_of_sampling_params_change_nothing() -> None:
    params = SamplingParams(stop=["a"], stop_token_ids=[1])
    read = read_sampling_params(params, has_tokenizer=True)
    params.stop.append("")
    params.stop_token_ids.append(-1)
    assert read == SamplingParams(stop=["a"], stop_token_ids=[1])
    with pytest.raises(ValueError, match="stop holds an empty text"):
        read_sampling_params(params, has_tokenizer=True)

"""SamplingParams: the greedy default, what is accepted as what, and what is refused."""

import pickle

import pytest
from pydantic import ValidationError

from tensorrt_lora.sampling_params import Logprob, SamplingParams


def test_default_is_greedy() -> None:
    params = SamplingParams()
    assert params.is_greedy
    assert (params.max_tokens, params.n, params.stop, params.stop_token_ids) == (32, 1, [], [])
    assert params.logprobs is None and params.seed is None


def test_temperature_may_be_an_integer_and_stop_one_text() -> None:
    params = SamplingParams(temperature=1, stop="\n", n=2)
    assert params.temperature == 1.0 and not params.is_greedy
    assert params.stop == ["\n"]


def test_zero_logprobs_is_not_none() -> None:
    assert SamplingParams(logprobs=0, prompt_logprobs=0).logprobs == 0


def test_survives_a_process_boundary() -> None:
    params = SamplingParams(temperature=0.7, seed=3, stop=["a", "b"])
    assert pickle.loads(pickle.dumps(params)) == params
    assert pickle.loads(pickle.dumps(Logprob(-1.5, 2))) == Logprob(-1.5, 2)


def test_is_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        SamplingParams().max_tokens = 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_tokens": 0}, "max_tokens\n  Input should be greater than or equal to 1"),
        ({"max_tokens": 2.0}, "max_tokens\n  Input should be a valid integer"),
        ({"max_tokens": "5"}, "max_tokens\n  Input should be a valid integer"),
        ({"max_tokens": None}, "max_tokens\n  Input should be a valid integer"),
        ({"min_tokens": -1}, "min_tokens\n  Input should be greater than or equal to 0"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens=9 is more than max_tokens=8"),
        ({"temperature": -0.1}, "temperature\n  Input should be greater than or equal to 0"),
        ({"temperature": float("nan")}, "temperature\n  Input should be a finite number"),
        ({"temperature": float("inf")}, "temperature\n  Input should be a finite number"),
        ({"top_k": -1}, "top_k\n  Input should be greater than or equal to 0"),
        ({"top_p": 0.0}, "top_p\n  Input should be greater than 0"),
        ({"top_p": 1.1}, "top_p\n  Input should be less than or equal to 1"),
        ({"min_p": 1.5}, "min_p\n  Input should be less than or equal to 1"),
        ({"seed": -1}, "seed\n  Input should be greater than or equal to 0"),
        ({"seed": 2**63}, "seed\n  Input should be less than"),
        ({"n": 0}, "n\n  Input should be greater than or equal to 1"),
        ({"n": 2}, "n=2 with temperature=0 gives 2 equal answers: set temperature > 0 or n=1"),
        ({"stop": ["a", ""]}, "stop holds an empty text"),
        ({"stop_token_ids": [1, -2]}, "stop_token_ids holds -2: token ids start at 0"),
        ({"ignore_eos": 1}, "ignore_eos\n  Input should be a valid boolean"),
        ({"n": 1025, "temperature": 1.0}, "n\n  Input should be less than or equal to 1024"),
        ({"repetition_penalty": 1e-45}, "repetition_penalty\n  Input should be greater than or equal to 0.01"),
        ({"repetition_penalty": 1e38}, "repetition_penalty\n  Input should be less than or equal to 100"),
        ({"presence_penalty": 2.5}, "presence_penalty\n  Input should be less than or equal to 2"),
        ({"frequency_penalty": -2.5}, "frequency_penalty\n  Input should be greater than or equal to -2"),
        ({"logprobs": -1}, "logprobs\n  Input should be greater than or equal to 0"),
        ({"logprobs": True}, "logprobs\n  Input should be a valid integer"),
        ({"prompt_logprobs": -1}, "prompt_logprobs\n  Input should be greater than or equal to 0"),
        ({"max_token": 3}, "max_token\n  Extra inputs are not permitted"),
    ],
)
def test_refuses(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError) as error:
        SamplingParams(**settings)
    assert message in str(error.value)

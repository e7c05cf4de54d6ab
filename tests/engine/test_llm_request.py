import pickle
from dataclasses import fields

import pytest

from tensorrt_lora.engine.generation_request import AbortRequest, GenerationRequest, GenerationResponse
from tensorrt_lora.engine.scheduled_requests import ContextChunk, ScheduledRequests
from tensorrt_lora.lora_request import LoRARequest
from tensorrt_lora.sampling_params import Logprob, SamplingParams
from tests.support.llm_requests import append_token, make_request

EOS = (2, 7)


def finish_after(request, tokens):
    """How many tokens the request takes of `tokens`, and why it ends."""
    for count, token in enumerate(tokens, start=1):
        reason = append_token(request, token)
        assert reason == request.finish_reason
        if reason is not None:
            return count, reason, request.stop_reason
    return len(tokens), None, None


@pytest.mark.parametrize(
    ("sampling", "tokens", "expected"),
    [
        ({"max_tokens": 3}, [4, 4, 4, 4], (3, "length", None)),
        ({"max_tokens": 1}, [4], (1, "length", None)),
        ({"max_tokens": 9}, [4, 7, 4], (2, "stop", None)),
        ({"max_tokens": 9}, [2], (1, "stop", None)),
        ({"max_tokens": 2}, [4, 2], (2, "stop", None)),  # a stop token as the last allowed one is a stop
        ({"max_tokens": 3, "ignore_eos": True}, [2, 7, 2, 4], (3, "length", None)),
        ({"max_tokens": 9, "stop_token_ids": [5]}, [4, 5], (2, "stop", 5)),
        ({"max_tokens": 9, "stop_token_ids": [5], "ignore_eos": True}, [2, 7, 5], (3, "stop", 5)),
        ({"max_tokens": 9, "stop_token_ids": [7]}, [7], (1, "stop", None)),  # the model's own end comes first
        ({"max_tokens": 9, "stop_token_ids": [7], "ignore_eos": True}, [7], (1, "stop", 7)),
        ({"max_tokens": 9, "min_tokens": 2}, [2, 2, 2], (3, "stop", None)),
        ({"max_tokens": 9, "min_tokens": 2, "stop_token_ids": [5]}, [5, 5, 4, 5], (4, "stop", 5)),
        ({"max_tokens": 2, "min_tokens": 2}, [2, 2], (2, "length", None)),
        ({"max_tokens": 9}, [4, 4], (2, None, None)),
    ],
)
def test_the_rule_that_ends_a_sequence(sampling, tokens, expected):
    assert finish_after(make_request(3, eos_token_ids=EOS, **sampling), tokens) == expected


def test_tokens_between_equals_slices_of_all_tokens():
    request = make_request([10, 11, 12], output=(20, 21, 22, 23))
    everything = request.token_ids
    assert everything == [10, 11, 12, 20, 21, 22, 23]
    assert request.num_tokens == 7
    for start in range(8):
        for stop in range(start, 8):
            assert request.tokens_between(start, stop) == everything[start:stop]


def test_token_counts_follow_the_penalties_in_use():
    assert make_request([1, 1, 2], output=(2, 3, 3)).token_counts is None
    assert make_request([1, 1, 2], output=(2, 3, 3), presence_penalty=0.5).token_counts == {2: 1, 3: 2}
    assert make_request([1, 1, 2], output=(2, 3, 3), frequency_penalty=0.5).token_counts == {2: 1, 3: 2}
    assert make_request([1, 1, 2], output=(2, 3, 3), repetition_penalty=1.5).token_counts == {
        1: 0,
        2: 1,
        3: 2,
    }


def test_prompt_logprob_positions_cover_each_prompt_token_once():
    assert not make_request(5).prompt_logprob_positions(0, 5)
    request = make_request(5, prompt_logprobs=0)
    assert request.prompt_logprob_positions(0, 3) == range(0, 3)
    request.prompt_logprobs = [None, {}, {}, {}]
    assert request.prompt_logprob_positions(3, 5) == range(3, 4)  # the last position tells of the first output token
    # Preempted and prefilled again from the start: only what is missing.
    assert not request.prompt_logprob_positions(0, 2)
    assert request.prompt_logprob_positions(0, 4) == range(3, 4)
    request.prompt_logprobs.append({})
    assert not request.prompt_logprob_positions(0, 5)
    assert not request.prompt_logprob_positions(5, 9)
    assert not make_request(1, prompt_logprobs=0).prompt_logprob_positions(0, 1)


def test_messages_survive_pickling():
    request = GenerationRequest(1, [1, 2], SamplingParams(stop=["x"]), LoRARequest("a", 1, "/a"))
    response = GenerationResponse(
        1, 2, [3], [{3: Logprob(-0.5, 1)}], [None, {2: Logprob(-1.0, 2)}], "stop", 3, None, 16
    )
    for message in (request, response, AbortRequest(5)):
        copy = pickle.loads(pickle.dumps(message))
        assert type(copy) is type(message)
        for field in fields(message):
            assert getattr(copy, field.name) == getattr(message, field.name)


def test_scheduled_requests_keep_row_order_and_settle_last_chunks():
    partial, last, decoding = make_request(8), make_request(6), make_request(2, output=(1,))
    scheduled = ScheduledRequests([ContextChunk(partial, 0, 4), ContextChunk(last, 2, 4)], [decoding])
    assert scheduled.num_tokens == 9 and bool(scheduled)
    assert scheduled.requests == [partial, last, decoding]
    assert scheduled.sampled_requests == [last, decoding]
    assert scheduled.context[1].token_ids == [2, 3, 4, 5]
    append_token(last, 9)
    assert scheduled.context[1].is_last
    assert not ScheduledRequests()

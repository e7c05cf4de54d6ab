import pytest

from tensorrt_lora.config.guided_decoding_params import GuidedDecodingParams
from tensorrt_lora.engine.generation_request import GenerationRequest
from tensorrt_lora.engine.llm_request import RequestState
from tensorrt_lora.engine.llm_request_factory import LlmRequestFactory
from tensorrt_lora.sampling_params import SamplingParams
from tests.support.llm_requests import FakeAdapter, append_token

EOS = (2, 7)


def make_message(**sampling):
    return GenerationRequest(11, [1, 2, 3], SamplingParams(temperature=1.0, **sampling))


def create(message, *, engine_seed=0, adapter=None):
    return LlmRequestFactory(eos_token_ids=EOS, engine_seed=engine_seed).create(message, 4, adapter)


def test_sequences_of_one_request_differ_in_index_and_seed_only():
    adapter = FakeAdapter(3)
    requests = create(make_message(n=4, seed=9), adapter=adapter)
    assert [request.sequence_index for request in requests] == [0, 1, 2, 3]
    assert len({request.seed for request in requests}) == 4
    for request in requests:
        assert request.request_id == 11 and request.arrival == 4 and request.eos_token_ids == EOS
        assert request.prompt_token_ids == [1, 2, 3] and request.adapter is adapter
        assert request.adapter_key == (3, "v1") and request.state is RequestState.WAITING
    append_token(requests[0], 5)
    assert requests[1].output_token_ids == []


def test_seeds_come_from_the_request_or_else_from_the_engine():
    given = create(make_message(seed=9))[0].seed
    assert create(make_message(seed=9), engine_seed=1)[0].seed == given
    assert create(make_message(seed=9, n=2))[0].seed == given
    assert create(make_message(seed=10))[0].seed != given
    own = create(make_message())[0].seed
    assert create(make_message())[0].seed == own
    assert create(make_message(), engine_seed=1)[0].seed != own
    other_id = GenerationRequest(12, [1, 2, 3], SamplingParams(temperature=1.0))
    assert create(other_id)[0].seed != own


def test_a_prescribed_form_needs_a_decoder():
    form = GuidedDecodingParams(json_object=True)
    with pytest.raises(ValueError, match="guided_decoding_backend is None: set it"):
        create(make_message(guided_decoding=form))

"""All sequences of a request, and what they share."""

from tensorrt_lora.engine.generation_request import GenerationRequest, GenerationResponse
from tensorrt_lora.llmapi.output_builder import OutputBuilder, StreamPosition
from tensorrt_lora.llmapi.request_output import Usage
from tensorrt_lora.llmapi.tokenizer import Tokenizer
from tensorrt_lora.lora_request import LoRARequest
from tensorrt_lora.sampling_params import Logprob, SamplingParams

ADAPTER = LoRARequest("pirate", 1, "adapters/pirate")


def make_builder(tokenizer: Tokenizer, *, n: int = 1, stop: str = "!") -> OutputBuilder:
    params = SamplingParams(n=n, temperature=1.0, stop=stop, prompt_logprobs=0)
    request = GenerationRequest(3, tokenizer.encode("ab"), params, ADAPTER)
    return OutputBuilder(request, prompt="ab", tokenizer=tokenizer, streaming=True)


def test_shared_facts(tokenizer: Tokenizer) -> None:
    builder = make_builder(tokenizer, n=2)
    prompt_logprobs = [None, {1: Logprob(-1.0, 1)}]
    for index in (0, 1):
        builder.append(GenerationResponse(3, index, [5], prompt_logprobs=prompt_logprobs, num_cached_tokens=index))
    output = builder.snapshot()
    assert (output.request_id, output.prompt, output.prompt_token_ids) == (3, "ab", tokenizer.encode("ab"))
    assert output.prompt_logprobs == prompt_logprobs
    assert output.usage == Usage(prompt_tokens=2, completion_tokens=2, cached_tokens=1)
    assert output.lora_request is ADAPTER
    assert [completion.index for completion in output.outputs] == [0, 1]


def test_finished_when_every_sequence_is(tokenizer: Tokenizer) -> None:
    builder = make_builder(tokenizer, n=2)
    builder.append(GenerationResponse(3, 1, [5], finish_reason="length"))
    assert not builder.finished and not builder.snapshot().finished
    builder.append(GenerationResponse(3, 0, tokenizer.encode("!")))
    assert builder.finished and builder.snapshot().finished
    # The engine would go on: the stop string was seen here.
    assert not builder.engine_finished
    builder.append(GenerationResponse(3, 0, [5], finish_reason="length"))
    assert builder.engine_finished


def test_an_error_of_one_sequence_ends_the_request(tokenizer: Tokenizer) -> None:
    builder = make_builder(tokenizer, n=2)
    builder.append(GenerationResponse(3, 0, tokenizer.encode("x")))
    builder.append(GenerationResponse(3, 1, finish_reason="error", error="NaN in the logits"))
    output = builder.snapshot()
    assert output.finished and output.error == "NaN in the logits"
    assert [(one.text, one.finish_reason) for one in output.outputs] == [("x", "error"), ("", "error")]
    assert not builder.engine_finished


def test_diffs_follow_a_stream_position(tokenizer: Tokenizer) -> None:
    builder = make_builder(tokenizer, stop="d!")
    position = StreamPosition()
    diffs = []
    for text in ("a", "bc", "d", "e"):
        builder.append(GenerationResponse(3, 0, tokenizer.encode(text)))
        [completion] = builder.snapshot(position).outputs
        diffs.append((completion.text_diff, len(completion.token_ids_diff)))
    # "d" might have become the stop string.
    assert diffs == [("a", 1), ("bc", 2), ("", 1), ("de", 1)]
    [whole] = builder.snapshot().outputs
    assert whole.text_diff == whole.text == "abcde"


def test_snapshots_are_independent(tokenizer: Tokenizer) -> None:
    builder = make_builder(tokenizer)
    builder.append(GenerationResponse(3, 0, [5]))
    first = builder.snapshot()
    builder.append(GenerationResponse(3, 0, [6], finish_reason="length"))
    assert first.outputs[0].token_ids == [5] and not first.finished


def test_changing_an_output_changes_nothing(tokenizer: Tokenizer) -> None:
    builder = make_builder(tokenizer)
    builder.append(GenerationResponse(3, 0, [5], prompt_logprobs=[None, {1: Logprob(-1.0, 1)}]))
    output = builder.snapshot()
    assert output.prompt_logprobs is not None
    output.prompt_token_ids.clear()
    output.prompt_logprobs.clear()
    again = builder.snapshot()
    assert again.prompt_token_ids == tokenizer.encode("ab") and again.usage.prompt_tokens == 2
    assert again.prompt_logprobs is not None and len(again.prompt_logprobs) == 2

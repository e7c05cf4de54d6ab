"""One sequence: text, stop strings and the cut, whatever the tokens look like."""

import pytest

from tensorrt_lora.engine.generation_request import GenerationResponse
from tensorrt_lora.llmapi.completion_builder import CompletionBuilder
from tensorrt_lora.llmapi.incremental_detokenizer import IncrementalDetokenizer
from tensorrt_lora.llmapi.request_output import CompletionOutput
from tensorrt_lora.llmapi.tokenizer import Tokenizer
from tensorrt_lora.sampling_params import Logprob, SamplingParams


def make_builder(tokenizer: Tokenizer | None, *, streaming: bool = False, **params: object) -> CompletionBuilder:
    return CompletionBuilder(
        index=0,
        params=SamplingParams(max_tokens=1000, **params),
        detokenizer=tokenizer and IncrementalDetokenizer(tokenizer, [], skip_special_tokens=True),
        incremental=streaming,
    )


def feed(builder: CompletionBuilder, token_ids: list[int], *, size: int = 1) -> CompletionOutput:
    for start in range(0, len(token_ids), size):
        builder.append(GenerationResponse(1, token_ids=token_ids[start : start + size]))
    return builder.snapshot()


@pytest.mark.parametrize("streaming", [True, False])
def test_text_of_all_tokens(tokenizer: Tokenizer, streaming: bool) -> None:
    builder = make_builder(tokenizer, streaming=streaming)
    token_ids = tokenizer.encode("caf\u00e9!")
    assert feed(builder, token_ids).text == ("caf\u00e9!" if streaming else "")
    builder.finish("length")
    output = builder.snapshot()
    assert (output.text, output.token_ids, output.finish_reason) == ("caf\u00e9!", token_ids, "length")
    assert output.logprobs is None and output.cumulative_logprob is None


@pytest.mark.parametrize("size", [1, 2, 3, 50])
@pytest.mark.parametrize(
    ("stop", "text", "kept", "matched"),
    [
        (["STOP"], "one two STOP three STOP", "one two ", "STOP"),
        (["two", "e t"], "one two", "on", "e t"),
        (["\u20ac"], "5 \u20ac or so", "5 ", "\u20ac"),
        (["o\u20ac"], "so\u20acso", "s", "o\u20ac"),
    ],
)
def test_stop_strings_cut_text_and_tokens(
    tokenizer: Tokenizer, size: int, stop: list[str], text: str, kept: str, matched: str
) -> None:
    """The last token is the one that completed the match, however many tokens arrive together."""
    builder = make_builder(tokenizer, stop=stop)
    output = feed(builder, tokenizer.encode(text), size=size)
    assert (output.text, output.finish_reason, output.stop_reason) == (kept, "stop", matched)
    assert output.token_ids == tokenizer.encode(kept + matched)
    assert not builder.engine_finished


def test_late_news_is_dropped(tokenizer: Tokenizer) -> None:
    builder = make_builder(tokenizer, stop=["b"])
    before = feed(builder, tokenizer.encode("abc"))
    builder.append(GenerationResponse(1, token_ids=[3], finish_reason="length"))
    builder.finish("abort")
    assert builder.snapshot() == before
    assert builder.engine_finished


def test_what_may_become_a_stop_string_is_not_shown_yet(tokenizer: Tokenizer) -> None:
    builder = make_builder(tokenizer, streaming=True, stop=["END"])
    shown = [feed(builder, [token_id]).text for token_id in tokenizer.encode("aENxEN")]
    assert shown == ["a", "a", "a", "aENx", "aENx", "aENx"]
    builder.finish("length")
    assert builder.snapshot().text == "aENxEN"


def test_min_tokens_hold_for_stop_strings(tokenizer: Tokenizer) -> None:
    builder = make_builder(tokenizer, stop=["b"], min_tokens=2)
    assert feed(builder, tokenizer.encode("abab")).text == "aba"


def test_a_stop_token_is_a_token_without_text(tokenizer: Tokenizer) -> None:
    for streaming in (True, False):
        builder = make_builder(tokenizer, streaming=streaming)
        token_ids = tokenizer.encode("ab.")
        builder.append(GenerationResponse(1, token_ids=token_ids, finish_reason="stop", stop_reason=token_ids[-1]))
        output = builder.snapshot()
        assert (output.text, output.token_ids, output.stop_reason) == ("ab", token_ids, token_ids[-1])


def test_an_end_token_is_skipped_as_special(tokenizer: Tokenizer) -> None:
    builder = make_builder(tokenizer)
    token_ids = tokenizer.encode("ab<|im_end|>")
    builder.append(GenerationResponse(1, token_ids=token_ids, finish_reason="stop"))
    output = builder.snapshot()
    assert (output.text, output.token_ids, output.finish_reason) == ("ab", token_ids, "stop")


def test_logprobs_follow_the_kept_tokens(tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode("abcd")
    logprobs = [{token_id: Logprob(-0.25, 1), 0: Logprob(-3.0, 2)} for token_id in token_ids]
    builder = make_builder(tokenizer, logprobs=1, stop=["bc"])
    builder.append(GenerationResponse(1, token_ids=token_ids, logprobs=logprobs, finish_reason="length"))
    output = builder.snapshot(seen_chars=0, seen_tokens=2)
    assert output.logprobs == logprobs[:3]
    assert output.cumulative_logprob == -0.75
    assert (output.token_ids_diff, output.logprobs_diff) == (token_ids[2:3], logprobs[2:3])


def test_without_a_tokenizer_there_are_tokens_only() -> None:
    builder = make_builder(None, streaming=True)
    assert feed(builder, [1, 2, 3]).token_ids == [1, 2, 3]
    builder.finish("length")
    assert builder.snapshot().text == ""


def test_abort_keeps_what_is_there(tokenizer: Tokenizer) -> None:
    builder = make_builder(tokenizer)
    feed(builder, tokenizer.encode("abc"))
    builder.finish("abort")
    assert (builder.snapshot().text, builder.snapshot().finish_reason) == ("abc", "abort")

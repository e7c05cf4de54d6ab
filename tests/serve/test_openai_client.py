"""The official client lists, completes, chats and streams, with the base model and with adapters."""

import openai
import pytest

from tensorrt_lora.sampling_params import SamplingParams
from tests.serve.conftest import Offline, Served

PROMPT = "The quick brown fox"
MODELS = [("tiny", None), ("red", "red"), ("green", "green")]  # green is loaded from the root by its first request


@pytest.mark.parametrize(("model", "adapter"), MODELS)
def test_completions_equal_the_offline_engine(
    served: Served, offline: Offline, model: str, adapter: str | None
) -> None:
    expected = offline.llm.generate(PROMPT, SamplingParams(max_tokens=12), offline.adapter(adapter))
    answer = served.client().completions.create(model=model, prompt=PROMPT, max_tokens=12, temperature=0)
    [choice] = answer.choices
    assert choice.text == expected.outputs[0].text
    assert choice.finish_reason == expected.outputs[0].finish_reason
    assert (answer.object, answer.model) == ("text_completion", model)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(PROMPT)
    assert answer.usage.completion_tokens == len(expected.outputs[0].token_ids)


def test_adapters_differ(served: Served) -> None:
    client = served.client()
    texts = {
        client.completions.create(model=model, prompt=PROMPT, max_tokens=12, temperature=0).choices[0].text
        for model, _ in MODELS
    }
    assert len(texts) == 3


@pytest.mark.parametrize(("model", "adapter"), MODELS)
def test_chat_equals_the_offline_engine(served: Served, offline: Offline, model: str, adapter: str | None) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    expected = offline.llm.chat(messages, SamplingParams(max_tokens=10), offline.adapter(adapter))
    answer = served.client().chat.completions.create(model=model, messages=messages, max_tokens=10, temperature=0)
    message = answer.choices[0].message
    assert (message.role, message.content) == ("assistant", expected.outputs[0].text)
    assert answer.usage is not None and answer.usage.prompt_tokens == len(expected.prompt_token_ids)
    # What comes back can be sent again as it is.
    again = served.client().chat.completions.create(
        model=model, messages=[*messages, message.model_dump()], max_completion_tokens=2, temperature=0
    )
    assert again.choices[0].finish_reason in ("length", "stop")


@pytest.mark.parametrize("model", ["tiny", "red"])
def test_streams_add_up_to_the_whole(served: Served, model: str) -> None:
    client = served.client()
    fields = {"model": model, "prompt": PROMPT, "max_tokens": 16, "temperature": 0, "logprobs": 2}
    whole = client.completions.create(**fields)
    chunks = list(client.completions.create(**fields, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage
    parts = [chunk.choices[0] for chunk in chunks[:-1]]
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert "".join(part.text for part in parts) == whole.choices[0].text
    assert [part.finish_reason for part in parts] == [None] * (len(parts) - 1) + [whole.choices[0].finish_reason]
    logprobs = whole.choices[0].logprobs
    assert logprobs is not None
    assert [one for part in parts for one in part.logprobs.token_logprobs] == logprobs.token_logprobs
    assert [one for part in parts for one in part.logprobs.text_offset] == logprobs.text_offset
    assert len({chunk.id for chunk in chunks}) == 1


def test_chat_streams(served: Served) -> None:
    client = served.client()
    fields = {"model": "red", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 12, "temperature": 0}
    whole = client.chat.completions.create(**fields)
    chunks = list(client.chat.completions.create(**fields, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert all(chunk.object == "chat.completion.chunk" for chunk in chunks)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason


def test_several_prompts_and_choices(served: Served) -> None:
    client = served.client()
    prompts = ["abc", "defg"]
    fields = {"model": "red", "prompt": prompts, "n": 3, "seed": 5, "temperature": 1.0, "max_tokens": 5}
    whole = client.completions.create(**fields)
    assert [choice.index for choice in whole.choices] == list(range(6))
    assert whole.usage is not None and whole.usage.prompt_tokens == 7
    texts = dict.fromkeys(range(6), "")
    for chunk in client.completions.create(**fields, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert list(texts.values()) == [choice.text for choice in whole.choices]
    assert len(set(texts.values())) > 1


def test_prompts_of_token_ids(served: Served) -> None:
    client = served.client()
    by_text = client.completions.create(model="tiny", prompt="abc", max_tokens=4, temperature=0)
    token_ids = served.llm.tokenizer.encode("abc")
    for prompt in (token_ids, [token_ids]):
        answer = client.completions.create(model="tiny", prompt=prompt, max_tokens=4, temperature=0)
        assert answer.choices[0].text == by_text.choices[0].text


def test_chat_logprobs(served: Served, offline: Offline) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    expected = offline.llm.chat(messages, SamplingParams(max_tokens=3, logprobs=2)).outputs[0]
    answer = served.client().chat.completions.create(
        model="tiny", messages=messages, max_tokens=3, temperature=0, logprobs=True, top_logprobs=2
    )
    content = answer.choices[0].logprobs.content
    assert expected.logprobs is not None
    for entry, token_id, reference in zip(content, expected.token_ids, expected.logprobs, strict=True):
        assert entry.logprob == pytest.approx(reference[token_id].logprob, abs=1e-5)
        assert len(entry.top_logprobs) == 2
        assert entry.top_logprobs[0].logprob >= entry.top_logprobs[1].logprob


def test_stop_strings(served: Served) -> None:
    client = served.client()
    fields = {"model": "tiny", "prompt": PROMPT, "max_tokens": 16, "temperature": 0}
    text = client.completions.create(**fields).choices[0].text
    stop = text[5:7]
    cut = client.completions.create(**fields, stop=stop).choices[0]
    assert (cut.text, cut.finish_reason) == (text[: text.index(stop)], "stop")


def test_lora_request_of_tensorrt_llm(served: Served) -> None:
    client = served.client()
    fields = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0}
    expected = client.completions.create(model="blue", **fields).choices[0].text
    for lora in (
        {"lora_name": "blue", "lora_int_id": 7},
        {"lora_name": "whatever", "lora_int_id": 0, "lora_path": str(served.root / "blue")},
        {"lora_path": "blue"},
    ):
        answer = client.completions.create(model="tiny", **fields, extra_body={"lora_request": lora})
        assert answer.choices[0].text == expected
    assert client.models.retrieve("blue").root == str(served.root / "blue")


def test_models(served: Served) -> None:
    client = served.client()
    cards = {card.id: card for card in client.models.list()}
    assert cards["tiny"].model_dump()["parent"] is None
    assert cards["red"].model_dump()["parent"] == "tiny"
    assert cards["red"].model_dump()["root"] == str(served.root / "red")
    assert client.models.retrieve("red").id == "red"
    with pytest.raises(openai.NotFoundError, match="no model 'violet'"):
        client.models.retrieve("violet")


def test_errors_are_the_clients_own(served: Served) -> None:
    client = served.client()
    with pytest.raises(openai.NotFoundError) as caught:
        client.completions.create(model="violet", prompt="a")
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.AuthenticationError):
        served.client(key="wrong").models.list()
    with pytest.raises(openai.BadRequestError, match="echo is not served"):
        client.completions.create(model="tiny", prompt="a", echo=True)
    with pytest.raises(openai.BadRequestError, match="n=2 with temperature=0"):
        client.completions.create(model="tiny", prompt="a", n=2, temperature=0)

"""What of OpenAI's chat requests is read, refused, or passed to the template."""

import pytest
from pydantic import ValidationError

from tensorrt_lora.serve.chat_completion_body import ChatCompletionBody

USER = {"role": "user", "content": "Hi"}


def read(**fields: object) -> ChatCompletionBody:
    return ChatCompletionBody.model_validate({"model": "m", "messages": [USER], **fields})


def test_messages_for_the_template() -> None:
    parts = {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    sent_back = {"role": "assistant", "content": "c", "refusal": None, "tool_calls": None, "annotations": []}
    messages = read(messages=[parts, {**USER, "name": "eve"}, sent_back]).messages
    assert [message.for_template() for message in messages] == [
        {"role": "system", "content": "ab"},
        {"role": "user", "content": "Hi", "name": "eve"},
        {"role": "assistant", "content": "c"},
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": []},
        {"messages": [{"role": "robot", "content": "x"}]},
        {"messages": [{"role": "user"}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        {"messages": [{"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}]},
        {"tools": [{"type": "function"}]},
        {"tool_choice": "required"},
        {"top_logprobs": 2},
        {"logprobs": True, "top_logprobs": 21},
        {"max_tokens": 1, "max_completion_tokens": 2},
        {"modalities": ["audio"]},
        {"chat_template": "{{ 1 }}"},
        {"reasoning_effort": "high"},
    ],
)
def test_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        read(**fields)


def test_log_probabilities_and_lengths() -> None:
    assert read().num_logprobs is None
    assert read(logprobs=True).num_logprobs == 0
    assert read(logprobs=True, top_logprobs=3).num_logprobs == 3
    assert (read().max_tokens_wanted, read(max_completion_tokens=5).max_tokens_wanted) == (None, 5)

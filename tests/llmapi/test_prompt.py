from enum import IntEnum

import pytest

from tensorrt_lora.llmapi.prompt import Prompt, read_prompt, split_prompts
from tensorrt_lora.llmapi.tokenizer import Tokenizer


@pytest.mark.parametrize("prompt", ["text", "", [1, 2], {"prompt": "text"}, {"prompt_token_ids": [1]}])
def test_one_prompt(prompt: object) -> None:
    assert split_prompts(prompt) == ([prompt], True)


@pytest.mark.parametrize("prompts", [[], ["a"], ["a", [1]], [[1], [2]], [[]], [{"prompt": "a"}], [1, "a"]])
def test_a_list_of_prompts(prompts: list[object]) -> None:
    assert split_prompts(prompts) == (prompts, False)


@pytest.mark.parametrize("prompts", [None, 5, 1.5, {"a"}, iter(["a"])])
def test_neither(prompts: object) -> None:
    with pytest.raises(ValueError, match="a prompt is text, a list of int token ids, or a dict"):
        split_prompts(prompts)


def test_read(tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode("abc")
    assert read_prompt("abc", tokenizer) == Prompt("abc", token_ids)
    assert read_prompt({"prompt": "abc"}, tokenizer) == Prompt("abc", token_ids)
    assert read_prompt([7, 8], tokenizer) == Prompt(None, [7, 8])
    assert read_prompt({"prompt_token_ids": [7]}, None) == Prompt(None, [7])
    assert read_prompt({"prompt": "abc", "prompt_token_ids": [7]}, None) == Prompt("abc", [7])


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ({"promt": "a"}, r"got keys \['promt'\]"),
        ({}, r"got keys \[\]"),
        ({"prompt": [1]}, "ids go into 'prompt_token_ids'"),
        ({"prompt_token_ids": "a"}, "got str 'a'"),
        ([1, True], "got list"),
        ([1, "a"], "got list"),
        (3, "got int 3"),
    ],
)
def test_wrong_prompts_are_named(tokenizer: Tokenizer, prompt: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_prompt(prompt, tokenizer)


def test_text_needs_a_tokenizer() -> None:
    with pytest.raises(ValueError, match="'abc' is text, but this LLM has no tokenizer: give token ids"):
        read_prompt("abc", None)


class _Token(IntEnum):
    SEVEN = 7


def test_token_ids_are_plain_ints_of_their_own() -> None:
    given = [_Token.SEVEN, 8]
    read = read_prompt(given, None).token_ids
    assert read == [7, 8] and read is not given
    assert [type(token_id) for token_id in read] == [int, int]

from pathlib import Path

import pytest

from tensorrt_lora.llmapi.tokenizer import Tokenizer
from tests.support.tiny_models import make_tiny_tokenizer

CHAT = [{"role": "user", "content": "Hi"}]


def test_text_goes_around(tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode("caf\u00e9 , don't")
    assert all(type(token_id) is int for token_id in token_ids)
    assert tokenizer.decode(token_ids) == "caf\u00e9 , don't"


def test_special_tokens_are_known_and_shown(tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode("<|im_end|>a")
    assert token_ids[0] in tokenizer.special_token_ids and token_ids[1] not in tokenizer.special_token_ids
    assert tokenizer.decode(token_ids) == "<|im_end|>a"


def test_chat_template(tokenizer: Tokenizer) -> None:
    asked = "<|im_start|>user\nHi<|im_end|>\n"
    assert tokenizer.apply_chat_template(CHAT) == asked + "<|im_start|>assistant\n"
    assert tokenizer.apply_chat_template(CHAT, add_generation_prompt=False) == asked


def test_own_template_and_variables(tokenizer: Tokenizer) -> None:
    rendered = tokenizer.apply_chat_template(
        CHAT, chat_template="{{ messages[0].content }}{{ mood }}", chat_template_kwargs={"mood": "!"}
    )
    assert rendered == "Hi!"


def test_template_that_refuses(tokenizer: Tokenizer) -> None:
    template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(ValueError, match="does not take these messages: roles must alternate"):
        tokenizer.apply_chat_template(CHAT, chat_template=template)


def test_no_template() -> None:
    hf_tokenizer = make_tiny_tokenizer()
    hf_tokenizer.chat_template = None
    with pytest.raises(ValueError, match="has no chat template: give chat_template="):
        Tokenizer(hf_tokenizer).apply_chat_template(CHAT)


def test_no_tokenizer_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="skip_tokenizer_init=True") as caught:
        Tokenizer.from_pretrained(str(tmp_path))
    assert str(tmp_path) in str(caught.value)


def test_half_a_surrogate_pair_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match=r"prompt 'a\\ud800x' has a lone surrogate at position 1"):
        tokenizer.encode("a\ud800x")


@pytest.mark.parametrize("template", ["{{ 'x' + messages[0].content }}", "{{ 1 / 0 }}", "{{ messages[5].a.b }}", "{{"])
def test_any_failure_of_a_template_is_a_value_error(tokenizer: Tokenizer, template: str) -> None:
    with pytest.raises(ValueError, match="the chat template does not take these messages"):
        tokenizer.apply_chat_template([{"role": "user", "content": 3}], chat_template=template)


@pytest.mark.parametrize("conversation", ["x", ["x"], [["role", "user"]], {"role": "user"}, None, 3])
def test_what_is_no_conversation(tokenizer: Tokenizer, conversation: object) -> None:
    with pytest.raises(ValueError, match="a conversation is a list of messages such as"):
        tokenizer.apply_chat_template(conversation)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"tokenize": True}, r"holds \['tokenize'\], no variables of a template"),
        ({"chat_template": "x", "return_dict": True}, r"holds \['chat_template', 'return_dict'\]"),
        ({3: True}, "must be a dict of template variables by name"),
        ("x", "must be a dict of template variables by name"),
    ],
)
def test_what_is_no_template_variable(tokenizer: Tokenizer, variables: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tokenizer.apply_chat_template(CHAT, chat_template_kwargs=variables)

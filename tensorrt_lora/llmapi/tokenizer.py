"""Text to token ids and back, with the tokenizer of a checkpoint.

Owns the one use of transformers' tokenizers: encoding, chat templates, decoding. Called by `LLM`, from any
thread, and by the detokenizer. Knows nothing of requests.
"""

import threading
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from jinja2 import TemplateError
from transformers import AutoTokenizer, PreTrainedTokenizerBase

# One chat: messages such as {"role": "user", "content": "Hello"}.
Conversation: TypeAlias = Sequence[Mapping[str, object]]

# What `apply_chat_template` sets itself, and what would make it return something else than text.
_RESERVED_VARIABLES = frozenset(
    {
        "conversation",
        "chat_template",
        "add_generation_prompt",
        "tokenize",
        "return_dict",
        "return_tensors",
        "return_assistant_tokens_mask",
        "padding",
        "truncation",
        "max_length",
        "tokenizer_kwargs",
    }
)


class Tokenizer:
    """A thread-safe view of a transformers tokenizer, which stays reachable as `hf_tokenizer`."""

    def __init__(self, hf_tokenizer: PreTrainedTokenizerBase) -> None:
        self.hf_tokenizer = hf_tokenizer
        added = hf_tokenizer.added_tokens_decoder
        self.special_token_ids = frozenset(hf_tokenizer.all_special_ids).union(
            token_id for token_id, token in added.items() if token.special
        )
        # Encoding sets padding and truncation on the shared Rust object, which refuses that from two threads.
        self._encode_lock = threading.Lock()

    @classmethod
    def from_pretrained(cls, source: str) -> "Tokenizer":
        """Load from a directory or hub id. Raises ValueError, naming `source`, when there is no tokenizer."""
        try:
            return cls(AutoTokenizer.from_pretrained(source))
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise ValueError(
                f"no tokenizer could be loaded from {source!r} ({error}): give tokenizer=<directory or hub "
                "id>, or skip_tokenizer_init=True to work with token ids"
            ) from error

    @property
    def has_chat_template(self) -> bool:
        return self.hf_tokenizer.chat_template is not None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`, with the special tokens that the model wants around a prompt.

        Raises ValueError for text that is no Unicode text: half of a surrogate pair, as broken JSON escapes leave.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            shown = ascii(text if len(text) <= 60 else text[:57] + "...")
            raise ValueError(
                f"prompt {shown} has a lone surrogate at position {error.start}, which is no character: remove it"
            ) from error
        with self._encode_lock:
            return list(self.hf_tokenizer.encode(text, add_special_tokens=add_special_tokens))

    def decode(self, token_ids: list[int]) -> str:
        """Text of `token_ids`, special tokens and all; bytes that make no character become U+FFFD."""
        # Cleaning up spaces would change text that is already out.
        return str(self.hf_tokenizer.decode(token_ids, clean_up_tokenization_spaces=False))

    def apply_chat_template(
        self,
        conversation: Conversation,
        *,
        add_generation_prompt: bool = True,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, object] | None = None,
    ) -> str:
        """Render a conversation as a prompt. It holds its special tokens: encode it without adding any.

        Args:
            add_generation_prompt: end with the start of the assistant's turn.
            chat_template: a Jinja template instead of the tokenizer's own.
            chat_template_kwargs: further variables of the template, such as Qwen3's `enable_thinking`.

        Raises ValueError when there is no template, or it refuses the messages, or one of these is of a wrong kind.
        """
        if not isinstance(conversation, (list, tuple)) or not all(isinstance(one, Mapping) for one in conversation):
            raise ValueError(
                "a conversation is a list of messages such as {'role': 'user', 'content': 'Hello'}, got "
                f"{conversation!r}"
            )
        variables = chat_template_kwargs or {}
        if not isinstance(variables, Mapping) or not all(isinstance(name, str) for name in variables):
            raise ValueError(f"chat_template_kwargs must be a dict of template variables by name, got {variables!r}")
        if reserved := sorted(_RESERVED_VARIABLES.intersection(variables)):
            raise ValueError(f"chat_template_kwargs holds {reserved}, no variables of a template: remove them")
        if chat_template is None and not self.has_chat_template:
            raise ValueError(
                "the tokenizer has no chat template: give chat_template=..., use a chat model, or call "
                "generate with the prompt as text"
            )
        try:
            rendered = self.hf_tokenizer.apply_chat_template(
                [dict(message) for message in conversation],
                chat_template=chat_template,
                add_generation_prompt=add_generation_prompt,
                tokenize=False,
                **variables,
            )
        except TemplateError as error:
            raise ValueError(f"the chat template does not take these messages: {error}") from error
        # A template is a program of the model's or the user's: what it computes may go wrong in any way.
        except Exception as error:
            raise ValueError(
                f"the chat template does not take these messages: {type(error).__name__}: {error}"
            ) from error
        return str(rendered)

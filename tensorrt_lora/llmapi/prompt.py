"""What counts as a prompt: text, token ids, or TensorRT-LLM's dict of either.

Owns the reading of prompts, one or many. Called by `LLM` and `RequestRunner`. Knows no engine, and loads no tokenizer.
"""

from dataclasses import dataclass
from typing import TypeAlias, TypedDict

from tensorrt_lora.llmapi.tokenizer import Tokenizer


class PromptDict(TypedDict, total=False):
    """A prompt by name. With both keys, the ids run and the text is shown as `RequestOutput.prompt`."""

    prompt: str
    prompt_token_ids: list[int]


PromptInput: TypeAlias = str | list[int] | PromptDict


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt ready for the engine."""

    text: str | None
    token_ids: list[int]


def split_prompts(prompts: object) -> tuple[list[object], bool]:
    """The prompts as a list, and whether there was just one; `[]` is a list of none.

    Raises ValueError for what is neither a prompt nor a list of prompts.
    """
    if isinstance(prompts, (list, tuple)) and not (prompts and all(_is_token_id(item) for item in prompts)):
        return list(prompts), False
    if isinstance(prompts, (str, dict, list)):
        return [prompts], True
    raise _no_prompt(prompts)


def read_prompt(prompt: object, tokenizer: Tokenizer | None) -> Prompt:
    """Tokenize a `PromptInput`. Raises ValueError when it is none, or is text while there is no tokenizer."""
    text, token_ids = _text_and_ids(prompt)
    if token_ids is not None:
        return Prompt(text, token_ids)
    assert text is not None
    if tokenizer is None:
        raise ValueError(
            f"prompt {_short(text)} is text, but this LLM has no tokenizer: give token ids, or leave out "
            "skip_tokenizer_init"
        )
    return Prompt(text, tokenizer.encode(text))


def _text_and_ids(prompt: object) -> tuple[str | None, list[int] | None]:
    """At least one of the two."""
    if isinstance(prompt, str):
        return prompt, None
    if not isinstance(prompt, dict):
        return None, _read_token_ids(prompt)
    text, token_ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
    if set(prompt) - {"prompt", "prompt_token_ids"} or (text is None and token_ids is None):
        raise ValueError(f"a prompt dict holds 'prompt' (text) or 'prompt_token_ids' (ids), got keys {list(prompt)}")
    if text is not None and not isinstance(text, str):
        raise ValueError(f"'prompt' must be text, got {_short(text)}: ids go into 'prompt_token_ids'")
    return text, None if token_ids is None else _read_token_ids(token_ids)


def _read_token_ids(token_ids: object) -> list[int]:
    if isinstance(token_ids, list) and all(_is_token_id(token_id) for token_id in token_ids):
        # Plain ints: members of an IntEnum of the user's script could not be read in the engine's process.
        return [int(token_id) for token_id in token_ids]
    raise _no_prompt(token_ids)


def _no_prompt(value: object) -> ValueError:
    return ValueError(
        f"a prompt is text, a list of int token ids, or a dict of either, got {type(value).__name__} "
        f"{_short(value)} (for arrays and tensors call .tolist())"
    )


def _is_token_id(item: object) -> bool:
    return isinstance(item, int) and not isinstance(item, bool)


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."

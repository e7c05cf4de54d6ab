"""What counts as a prompt: text, token ids, or TensorRT-LLM's dict of either.

Owns the reading of `LLM.generate`'s arguments: one or many, which kind, one setting for all or one for each.
Called by `LLM`. Knows no engine and loads no tokenizer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypedDict, TypeGuard, TypeVar

from tensorrt_lora.llmapi.tokenizer import Tokenizer


class PromptDict(TypedDict, total=False):
    """A prompt by name. With both keys, the ids run and the text is shown as `RequestOutput.prompt`."""

    prompt: str
    prompt_token_ids: list[int]


PromptInput: TypeAlias = str | list[int] | PromptDict
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt ready for the engine."""

    text: str | None
    token_ids: list[int]


def is_single_prompt(prompts: object) -> TypeGuard[PromptInput]:
    """Whether `prompts` is one prompt; a list is if it holds token ids. An empty list is no prompt at all."""
    if isinstance(prompts, (str, dict)):
        return True
    return isinstance(prompts, list) and bool(prompts) and all(_is_token_id(item) for item in prompts)


def read_prompt(prompt: object, tokenizer: Tokenizer | None) -> Prompt:
    """Tokenize a `PromptInput`. Raises ValueError when it is none, or is text while there is no tokenizer."""
    text, token_ids = _split(prompt)
    if token_ids is not None:
        return Prompt(text, token_ids)
    assert text is not None
    if tokenizer is None:
        raise ValueError(
            f"prompt {_short(text)} is text, but the LLM has no tokenizer: give token ids, or leave out "
            "skip_tokenizer_init"
        )
    return Prompt(text, tokenizer.encode(text))


def one_per_prompt(name: str, value: T | Sequence[T], num_prompts: int) -> list[T]:
    """`value` for every prompt, or a list's values in order. Raises ValueError when the lengths differ."""
    if not isinstance(value, (list, tuple)):
        return [value] * num_prompts  # type: ignore[list-item]  # T itself is never a sequence here.
    if len(value) != num_prompts:
        raise ValueError(
            f"{name} has {len(value)} entries for {num_prompts} prompts: give one for all, or one per prompt"
        )
    return list(value)


def _split(prompt: object) -> tuple[str | None, list[int] | None]:
    if isinstance(prompt, str):
        return prompt, None
    if isinstance(prompt, dict):
        unknown = sorted(set(prompt) - {"prompt", "prompt_token_ids"})
        text, token_ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
        if unknown or (text is None and token_ids is None):
            raise ValueError(
                f"a prompt dict holds 'prompt' (text) or 'prompt_token_ids' (ids), got the keys {sorted(prompt)}"
            )
        if text is not None and not isinstance(text, str):
            raise ValueError(
                f"'prompt' must be text, got {_short(text)}: use 'prompt_token_ids' for token ids"
            )
        return text, None if token_ids is None else _read_token_ids(token_ids)
    return None, _read_token_ids(prompt)


def _read_token_ids(token_ids: object) -> list[int]:
    if isinstance(token_ids, list) and all(_is_token_id(token_id) for token_id in token_ids):
        return list(token_ids)
    raise ValueError(
        f"a prompt is text, a list of int token ids, or a dict of either, got {type(token_ids).__name__} "
        f"{_short(token_ids)} (arrays and tensors: call .tolist())"
    )


def _is_token_id(item: object) -> bool:
    return isinstance(item, int) and not isinstance(item, bool)


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."

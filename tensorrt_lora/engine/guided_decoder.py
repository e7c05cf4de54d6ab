"""From a prescribed form to a grammar over the model's tokens.

Owns the tokenizer's view of the vocabulary and the grammars of recent schemas. Made by `LlmRequestFactory` where
`guided_decoding_backend` asks for it; llguidance, a Rust library, does the work. Knows no requests.
"""

import importlib.util
import json
from collections.abc import Sequence
from functools import lru_cache

from transformers import AutoTokenizer, PreTrainedTokenizerFast

from tensorrt_lora.config.guided_decoding_params import GuidedDecodingParams
from tensorrt_lora.config.llm_args import TorchLlmArgs
from tensorrt_lora.engine.token_grammar import TokenGrammar
from tensorrt_lora.models.gguf import resolve_checkpoint

_ANY_OBJECT = json.dumps({"type": "object"})
# Bounded: a model that likes white space could go on with it to the last token.
_WHITE_SPACE = r"[ \n\t]{0,20}"
_CACHED_GRAMMARS = 64


class GuidedDecoder:
    """Compiles forms, within milliseconds for usual schemas; equal ones share the work.

    Args:
        hf_tokenizer: the model's.
        vocab_size: rows of the model's head; those without a token are never allowed.
        eos_token_ids: the model's end tokens.

    Raises ValueError when llguidance is not installed or cannot use the tokenizer.
    """

    def __init__(self, hf_tokenizer: PreTrainedTokenizerFast, *, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        if importlib.util.find_spec("llguidance") is None:
            raise ValueError(
                "guided_decoding_backend=llguidance needs that package: pip install 'tensorrt_lora[serve]', or set it "
                "to None"
            )
        if not isinstance(hf_tokenizer, PreTrainedTokenizerFast):
            raise ValueError(
                "guided_decoding_backend=llguidance needs a fast tokenizer, which this model has not: set it to None"
            )
        from llguidance.hf import from_tokenizer

        self._tokenizer = from_tokenizer(hf_tokenizer, n_vocab=vocab_size, eos_token=list(eos_token_ids) or None)
        self._compile = lru_cache(_CACHED_GRAMMARS)(self._compile_schema)

    @classmethod
    def for_model(cls, args: TorchLlmArgs, *, vocab_size: int, eos_token_ids: Sequence[int]) -> "GuidedDecoder":
        """With the tokenizer of a model's checkpoint."""
        source = str(resolve_checkpoint(args.tokenizer or args.model, with_weights=False))
        return cls(AutoTokenizer.from_pretrained(source), vocab_size=vocab_size, eos_token_ids=eos_token_ids)

    def compile(self, params: GuidedDecodingParams) -> TokenGrammar:
        """A grammar at its start. Raises ValueError, with the reason, for a schema that cannot be followed."""
        grammar = self._compile(params.json_schema or _ANY_OBJECT)
        if grammar.error is not None:
            raise ValueError(f"guided_decoding: the JSON schema is not served: {grammar.error}")
        return grammar.copy()

    def _compile_schema(self, schema: str) -> TokenGrammar:
        from llguidance import LLMatcher

        try:
            text = LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_pattern": _WHITE_SPACE})
        except ValueError as error:
            raise ValueError(f"guided_decoding: the JSON schema cannot be read: {error}") from error
        return TokenGrammar(LLMatcher(self._tokenizer, text, log_level=0))

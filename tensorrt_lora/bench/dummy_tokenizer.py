"""A tokenizer for a model without one: every token id is a word.

So that a server with dummy weights does a real server's work on text. Written beside a preset's config.json, loaded
like any other.
"""

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

_SPACE = "\u0120"  # how byte-level tokenizers spell it


def write_dummy_tokenizer(directory: Path, vocab_size: int) -> None:
    """Token i reads " wi". Text of a user's is not encoded: prompts are token ids."""
    vocabulary = {f"{_SPACE}w{token}": token for token in range(vocab_size)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False).save_pretrained(directory)

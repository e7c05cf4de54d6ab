"""Every token id has a text of its own, and generated ones come out word by word."""

from pathlib import Path

from tensorrt_lora.bench.dummy_tokenizer import write_dummy_tokenizer
from tensorrt_lora.config.model_presets import find_preset
from tensorrt_lora.llmapi.incremental_detokenizer import IncrementalDetokenizer
from tensorrt_lora.llmapi.tokenizer import Tokenizer


def test_every_token_is_a_word(tmp_path: Path) -> None:
    find_preset("tiny").write(tmp_path)
    write_dummy_tokenizer(tmp_path, 512)
    tokenizer = Tokenizer.from_pretrained(str(tmp_path))
    assert tokenizer.decode([0, 17, 511]) == " w0 w17 w511"
    assert not tokenizer.special_token_ids
    detokenizer = IncrementalDetokenizer(tokenizer, [1, 2], skip_special_tokens=True)
    assert [detokenizer.append([token]) for token in (5, 511)] == [" w5", " w511"]

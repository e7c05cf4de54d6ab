"""Text piece by piece equals text at once, and no piece holds half a character."""

import random

import pytest
from tokenizers import Tokenizer as RustTokenizer
from tokenizers import decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tensorrt_lora.llmapi.incremental_detokenizer import IncrementalDetokenizer
from tensorrt_lora.llmapi.tokenizer import Tokenizer

TEXTS = [
    "Hello, world",
    " leading  and   inner spaces ",
    "na\u00efve caf\u00e9 \u20ac 5",
    "\U0001f600\U0001f469\u200d\U0001f680 and \u4f60\u597d",
    "\n\ttabs\n\n",
]


@pytest.fixture(scope="module")
def sentencepiece_like() -> Tokenizer:
    """Words with their leading space, which a text's start loses; bytes for all other characters."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["\u2581", "\u2581Paris", "\u2581is", "\u2581nice", "a", "b", ","]
    rust = RustTokenizer(
        models.BPE(
            vocab={piece: index for index, piece in enumerate(pieces)},
            merges=[],
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    rust.pre_tokenizer = pre_tokenizers.Metaspace()
    rust.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return Tokenizer(
        PreTrainedTokenizerFast(tokenizer_object=rust, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
    )


def pieces_of(
    tokenizer: Tokenizer, prompt: list[int], token_ids: list[int], *, skip_special_tokens: bool = True
) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, prompt, skip_special_tokens=skip_special_tokens)
    pieces = [detokenizer.append([token_id]) for token_id in token_ids]
    return [*pieces, detokenizer.flush()]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("prompt", ["", "Q: ", "\U0001f600"])
def test_bytes_make_whole_characters(tokenizer: Tokenizer, prompt: str, text: str) -> None:
    pieces = pieces_of(tokenizer, tokenizer.encode(prompt), tokenizer.encode(text))
    assert "".join(pieces) == text
    assert "\ufffd" not in "".join(pieces)
    assert pieces[-1] == ""


@pytest.mark.parametrize("text", TEXTS)
def test_chunks_of_tokens_give_the_same_text(tokenizer: Tokenizer, text: str) -> None:
    token_ids, draw = tokenizer.encode(text), random.Random(text)
    for _ in range(5):
        detokenizer = IncrementalDetokenizer(tokenizer, [], skip_special_tokens=True)
        rest, out = list(token_ids), ""
        while rest:
            count = draw.randint(1, len(rest))
            out += detokenizer.append(rest[:count])
            rest = rest[count:]
        assert out + detokenizer.flush() == text


def test_a_character_appears_with_its_last_byte(tokenizer: Tokenizer) -> None:
    assert pieces_of(tokenizer, [], tokenizer.encode("a\u20acb")) == ["a", "", "", "\u20ac", "b", ""]


def test_text_before_an_open_character_is_not_held(tokenizer: Tokenizer) -> None:
    a, first, *rest = tokenizer.encode("a\u20ac")
    detokenizer = IncrementalDetokenizer(tokenizer, [], skip_special_tokens=True)
    assert detokenizer.append([a, first]) == "a"
    assert detokenizer.append(rest) == "\u20ac"


def test_an_unfinished_character_is_flushed(tokenizer: Tokenizer) -> None:
    assert pieces_of(tokenizer, [], tokenizer.encode("a\u20ac")[:-1]) == ["a", "", "", "\ufffd"]


def test_a_long_run_of_broken_bytes_comes_out(tokenizer: Tokenizer) -> None:
    """A continuation byte without a start never becomes a character; text after it is right again."""
    stray = tokenizer.encode("\u20ac")[-1]
    pieces = pieces_of(tokenizer, [], [stray] * 100 + tokenizer.encode("ok"))
    assert "".join(pieces) == "\ufffd" * 100 + "ok"
    assert len("".join(pieces[:32])) >= 16


@pytest.mark.parametrize("skip", [True, False])
def test_special_tokens(tokenizer: Tokenizer, skip: bool) -> None:
    token_ids = tokenizer.encode("<|im_start|>a<|im_end|>b")
    text = "".join(pieces_of(tokenizer, [], token_ids, skip_special_tokens=skip))
    assert text == ("ab" if skip else "<|im_start|>a<|im_end|>b")


def ids(tokenizer: Tokenizer, *pieces: str) -> list[int]:
    return [tokenizer.hf_tokenizer.convert_tokens_to_ids(piece) for piece in pieces]


def test_a_leading_space_survives_after_a_prompt(sentencepiece_like: Tokenizer) -> None:
    prompt = ids(sentencepiece_like, "<s>", "\u2581Paris")
    answer = ids(sentencepiece_like, "\u2581is", "\u2581nice", ",", "\u2581Paris")
    assert pieces_of(sentencepiece_like, prompt, answer) == [" is", " nice", ",", " Paris", ""]


def test_a_space_survives_after_skipped_tokens(sentencepiece_like: Tokenizer) -> None:
    prompt = ids(sentencepiece_like, "\u2581Paris")
    answer = ids(sentencepiece_like, "a", "</s>", "</s>", "\u2581is")
    assert pieces_of(sentencepiece_like, prompt, answer) == ["a", "", "", " is", ""]


def test_byte_fallback(sentencepiece_like: Tokenizer) -> None:
    """Its decoder turns a whole run of bytes into replacements while the last character is open."""
    euro = [f"<0x{byte:02X}>" for byte in "\u20ac".encode()]
    answer = ids(sentencepiece_like, "a", *euro, *euro, "b")
    pieces = pieces_of(sentencepiece_like, ids(sentencepiece_like, "a"), answer)
    assert pieces == ["a", "", "", "\u20ac", "", "", "\u20ac", "b", ""]

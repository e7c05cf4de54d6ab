"""Tiny random Hugging Face checkpoints for every served architecture, and a byte-level tokenizer for them.

Sizes are awkward on purpose: heads * head_dim differs from hidden_size, three query heads share a key head.
Weights are scaled so that logits spread over several units: greedy choices are not near ties.
"""

from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    ArceeConfig,
    ArceeForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

ENDOFTEXT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
VOCAB_SIZE = 272  # 256 bytes, three special tokens, and rows that no token uses

_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_SIZES: dict[str, object] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 72,
    "intermediate_size": 112,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": 258,
    "pad_token_id": 256,
}
_FAMILIES: dict[str, tuple[type[PretrainedConfig], type[PreTrainedModel], dict[str, object]]] = {
    "qwen3": (
        Qwen3Config,
        Qwen3ForCausalLM,
        {"tie_word_embeddings": True, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    ),
    "qwen3_untied": (Qwen3Config, Qwen3ForCausalLM, {"tie_word_embeddings": False}),
    "llama": (LlamaConfig, LlamaForCausalLM, {"tie_word_embeddings": False}),
    "llama_tied_bias": (
        LlamaConfig,
        LlamaForCausalLM,
        {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    ),
    "mistral": (MistralConfig, MistralForCausalLM, {"sliding_window": None}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {"tie_word_embeddings": True, "hidden_size": 96}),
    "arcee": (ArceeConfig, ArceeForCausalLM, {"tie_word_embeddings": False}),
}
FAMILIES = tuple(_FAMILIES)


def save_tiny_model(
    directory: Path,
    family: str,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    max_shard_size: str = "1GB",
    tokenizer: bool = True,
    overrides: dict[str, object] | None = None,
    logit_std: float = 3.0,
) -> Path:
    """Write a random checkpoint and return its directory.

    Args:
        directory: made if needed.
        family: one of `FAMILIES`.
        seed: of the weights.
        dtype: of the stored weights.
        max_shard_size: as in `save_pretrained`; "40KB" makes several shards.
        tokenizer: also save the tiny tokenizer.
        overrides: fields of the family's transformers config.
        logit_std: spread of the logits; at 3 greedy choices are not near ties.
    """
    model = make_tiny_model(family, seed=seed, overrides=overrides, logit_std=logit_std)
    model.to(dtype).save_pretrained(directory, max_shard_size=max_shard_size)
    if tokenizer:
        make_tiny_tokenizer().save_pretrained(directory)
    return directory


def make_tiny_model(
    family: str, *, seed: int = 0, overrides: dict[str, object] | None = None, logit_std: float = 3.0
) -> PreTrainedModel:
    """The float32 transformers model of `family` with random weights, in eval mode."""
    config_class, model_class, family_fields = _FAMILIES[family]
    model = model_class(config_class(**{**_SIZES, **family_fields, **(overrides or {})})).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            _randomize(name, parameter, model.config.tie_word_embeddings, logit_std, generator)
    return model


def _randomize(
    name: str, parameter: torch.nn.Parameter, tied: bool, logit_std: float, generator: torch.Generator
) -> None:
    if parameter.dim() == 1:
        mean, std = (0.0, 0.2) if name.endswith("bias") else (1.0, 0.1)
    elif name == "lm_head.weight" or (tied and name == "model.embed_tokens.weight"):
        mean, std = 0.0, logit_std / parameter.shape[1] ** 0.5
    elif name == "model.embed_tokens.weight":
        mean, std = 0.0, 1.0
    else:
        mean, std = 0.0, 1.5 / parameter.shape[1] ** 0.5
    parameter.normal_(mean, std, generator=generator)


def make_tiny_tokenizer() -> PreTrainedTokenizerFast:
    """One token for each byte (ids 0 to 255), three special tokens (256 to 258), a ChatML template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={character: index for index, character in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in (ENDOFTEXT, IM_START, IM_END)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=IM_END,
        pad_token=ENDOFTEXT,
        chat_template=_CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )

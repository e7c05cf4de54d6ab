"""Tensor names that are not PEFT's LoRA, and whose they are.

Owns what is said about a tensor that cannot be served: which format or method it comes from, and what to do. Called by
`SiteBinder` for names without a role, and for modules that the model does not have.
"""

import re

from tensorrt_lora.adapters.peft_keys import MAX_KEY_LENGTH

_TO_PEFT = "convert the adapter to PEFT"
_FORMATS = (
    (r"(^|\.)layers\.\d+\.(attn|mlp)\.\w+\.lora_[ab]\b", f"this is torchtune's naming; {_TO_PEFT}"),
    (r"(^|\.)layers\.\d+\.(attention\.w[qkvo]|feed_forward\.w[123])\b", f"this is Mistral's own naming; {_TO_PEFT}"),
    (r"lora_[ab]$", f"this is MLX's naming, its matrices are transposed; {_TO_PEFT}"),
    (
        r"adapter_layer\.lora_|\blinear_(in|out)\.weight$",
        "this is NeMo's naming; give the .nemo archive and lora_ckpt_source='nemo'",
    ),
    (r"lora_(up|down|mid)\b|(^|\.)alpha$", f"this is kohya's naming; {_TO_PEFT}"),
)
_TRAINED_MODULE = "fully trained modules are not served; train without modules_to_save"
_REASONS = (
    *_FORMATS,
    (r"trainable_tokens_", "trained token embeddings are not served; train without trainable_token_indices"),
    (r"lora_(E|ranknum)\b", "AdaLoRA is not served; train a plain LoRA"),
    (
        r"hada_[wt]|lokr_|oft_|ia3_|vera_|randlora_|vblora_|shira_|fourierft_|prompt_(embeddings|encoder)",
        "this is another PEFT method, only LoRA is served",
    ),
    (r"(modules_to_save|original_module)\.|(^|\.)(score|classifier|v_head|value_head)\.", _TRAINED_MODULE),
    (r"norm.*\.(weight|bias)$", "trained norms are not served; train LoRA modules only"),
    (r"lora_[A-Z]", "this is not how PEFT names a LoRA tensor; save the adapter again"),
    (r"base_layer\.", "this is a weight of the base model; save LoRA tensors only"),
)


def explain_other(key: str) -> str:
    """Why a tensor without a role in LoRA cannot be served, and what to do."""
    if len(key) > MAX_KEY_LENGTH:
        return f"the name has more than {MAX_KEY_LENGTH} characters; this is no adapter"
    return _first(_REASONS, key) or "this is no LoRA tensor; save the adapter with PEFT, LoRA tensors only"


def explain_format(key: str) -> str | None:
    """Which other program writes names like `key`, and what to do; None if no known one does."""
    return _first(_FORMATS, key)


def _first(reasons: tuple[tuple[str, str], ...], key: str) -> str | None:
    return next((reason for pattern, reason in reasons if re.search(pattern, key)), None)

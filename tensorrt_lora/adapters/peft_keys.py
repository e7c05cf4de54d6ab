"""The names of tensors in adapter files.

Owns the spellings that trainers use for one and the same tensor, and what a tensor that is no LoRA pair is.
Called by `SiteBinder`. Knows no shapes and no model.
"""

import re
from dataclasses import dataclass
from enum import Enum

PREFIX = "base_model.model."
# Left in names by torch.compile, activation checkpointing and FSDP; they wrap a module and rename nothing.
_WRAPPERS = {"_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"}
# Containers around the decoder layers. Which of them a name has depends on the class that was trained: the
# text model alone, the causal LM, or a multimodal wrapper around it.
_CONTAINERS = {"model", "language_model"}
_LORA_KEY = re.compile(r"(?P<module>.+)\.lora_(?P<half>[AB])(?:\.(?P<adapter>[^.]+))?\.weight")
_BUFFER = re.compile(r"(.*\.)?(rotary_emb\.inv_freq|rope_freqs\.weight)")


class TensorRole(Enum):
    """What a tensor is to the module it belongs to."""

    LORA_A = "lora_A"  # [rank, in]
    LORA_B = "lora_B"  # [out, rank]
    BUFFER = "buffer"  # of the base model, saved by mistake: the base has its own
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class PeftKey:
    """A tensor's name taken apart."""

    key: str  # as in the file
    module: str  # as in the model that was trained, wrappers removed: what PEFT's patterns match
    role: TensorRole
    adapter_name: str | None  # "default" in "...lora_A.default.weight"

    @property
    def path(self) -> str:
        """The module's name from the decoder layers on, the same for every container around them."""
        return strip_containers(self.module)

    @property
    def is_plain(self) -> bool:
        """Whether this is how PEFT itself writes the name."""
        return self.key == f"{PREFIX}{self.module}.{self.role.value}.weight"


def parse_key(key: str) -> PeftKey:
    """Take a tensor name apart; never fails, names of no LoRA pair come back as BUFFER or OTHER."""
    segments = [segment for segment in key.split(".") if segment not in _WRAPPERS]
    if segments[:1] == ["module"]:  # distributed data parallel and DeepSpeed wrap the whole model
        del segments[0]
    name = ".".join(segments).removeprefix(PREFIX)
    match = _LORA_KEY.fullmatch(name)
    if match is not None:
        return PeftKey(key, match["module"], TensorRole(f"lora_{match['half']}"), match["adapter"])
    role = TensorRole.BUFFER if _BUFFER.fullmatch(name) else TensorRole.OTHER
    return PeftKey(key, name.rpartition(".")[0], role, None)


def strip_containers(module: str) -> str:
    """`module` without the containers at its start: "model.layers.0.mlp" becomes "layers.0.mlp"."""
    segments = module.split(".")
    while len(segments) > 1 and segments[0] in _CONTAINERS:
        del segments[0]
    return ".".join(segments)


def explain_other(key: str) -> str:
    """Why a tensor that is neither lora_A nor lora_B cannot be served, and what to do."""
    for pattern, reason in _REASONS:
        if re.search(pattern, key):
            return reason
    return "this is no LoRA tensor; save the adapter with PEFT, LoRA weights only"


_SAVED_MODULE = "fully trained modules are not served yet; train without modules_to_save"
_REASONS = (
    (r"lora_magnitude_vector", "DoRA is not served yet; train with use_dora=false"),
    (r"lora_B(\.[^.]+)?\.bias$", "a bias on lora_B is not served yet; train with lora_bias=false"),
    (
        r"lora_embedding_[AB]",
        "LoRA on embeddings is not served yet; leave embed_tokens out of target_modules",
    ),
    (r"trainable_tokens_delta", "trained token embeddings are not served yet; train without them"),
    (r"lora_(E|ranknum)\b", "AdaLoRA is not served; train a plain LoRA"),
    (
        r"(^|\.)layers\.\d+\.(attn|mlp\.w[123])\b.*lora_[ab]\b",
        "this is torchtune's naming; export the adapter to PEFT",
    ),
    (r"lora_[ab]$", "this is MLX's naming, its matrices are transposed; convert the adapter to PEFT"),
    (r"modules_to_save|(^|\.)(embed_tokens|lm_head|score|classifier)\.weight$", _SAVED_MODULE),
    (r"norm.*\.weight$", "trained norms are not served; train LoRA modules only"),
    (r"\.bias$", "trained base biases are not served yet; train with bias='none'"),
)

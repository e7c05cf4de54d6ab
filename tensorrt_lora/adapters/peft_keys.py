"""The names of tensors in adapter files.

Owns the spellings that trainers use for one and the same tensor. Called by `SiteBinder`. Knows no shapes and no model.
"""

import re
from dataclasses import dataclass
from enum import Enum

PREFIX = "base_model.model."
MAX_KEY_LENGTH = 1000
# Left in names by torch.compile, activation checkpointing and FSDP; they wrap a module and rename nothing.
_WRAPPERS = {"_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"}
# Containers around the decoder layers. Which of them a name has depends on the class that was trained: the
# text model alone, the causal LM, or a multimodal wrapper around it.
_CONTAINERS = {"model", "language_model"}
_VOCABULARY_MODULES = ("embed_tokens", "lm_head")


class TensorRole(Enum):
    """What a tensor is to the module it belongs to; the value is the end of the name as PEFT writes it."""

    LORA_A = "lora_A.weight"  # [rank, in]
    LORA_B = "lora_B.weight"  # [out, rank]
    EMBEDDING_A = "lora_embedding_A"  # [rank, vocab]
    EMBEDDING_B = "lora_embedding_B"  # [hidden, rank]
    LORA_BIAS = "lora_B.bias"  # [out]
    MAGNITUDE = "lora_magnitude_vector"  # [out], DoRA
    BASE_BIAS = "base_layer.bias"  # [out], trained in place of the base layer's
    BASE_WEIGHT = "base_layer.weight"  # [vocab, hidden], a copy that PEFT saves of the embedding or the head
    BUFFER = "buffer"  # of the base model, saved by mistake: the base has its own
    OTHER = "other"

    @property
    def label(self) -> str:
        return self.value.removesuffix(".weight")


_ADAPTER = r"(?:\.(?P<adapter>[^.]+))?"
_ENDINGS = (
    (re.compile(rf"(?P<module>.+)\.lora_A{_ADAPTER}\.weight"), TensorRole.LORA_A),
    (re.compile(rf"(?P<module>.+)\.lora_B{_ADAPTER}\.weight"), TensorRole.LORA_B),
    (re.compile(rf"(?P<module>.+)\.lora_B{_ADAPTER}\.bias"), TensorRole.LORA_BIAS),
    (re.compile(rf"(?P<module>.+)\.lora_embedding_A{_ADAPTER}"), TensorRole.EMBEDDING_A),
    (re.compile(rf"(?P<module>.+)\.lora_embedding_B{_ADAPTER}"), TensorRole.EMBEDDING_B),
    # PEFT 0.9 to 0.11 kept the magnitude in a layer of its own; the files never had the ".weight", others' do.
    (
        re.compile(r"(?P<module>.+)\.lora_magnitude_vector(?:\.(?P<adapter>(?!weight$)[^.]+))?(?:\.weight)?"),
        TensorRole.MAGNITUDE,
    ),
    (re.compile(rf"(?P<module>(?:.+\.)?(?:{'|'.join(_VOCABULARY_MODULES)}))(?:\.base_layer)?\.weight"),
     TensorRole.BASE_WEIGHT),
    (re.compile(r"(?P<module>.+?)(?:\.base_layer)?\.bias"), TensorRole.BASE_BIAS),
    (re.compile(r"(?P<module>.*\.)?(?:rotary_emb\.inv_freq|rope_freqs\.weight)"), TensorRole.BUFFER),
)  # fmt: skip
_LORA_ROLES = (TensorRole.LORA_A, TensorRole.LORA_B, TensorRole.EMBEDDING_A, TensorRole.EMBEDDING_B)


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
    def is_lora(self) -> bool:
        """Whether it is half of a pair of low-rank matrices."""
        return self.role in _LORA_ROLES

    @property
    def is_plain(self) -> bool:
        """Whether this is how PEFT itself writes the name."""
        ends = {self.role.value, self.role.value.removeprefix("base_layer.")}
        return self.key in {f"{PREFIX}{self.module}.{end}" for end in ends}


def parse_key(key: str) -> PeftKey:
    """Take a tensor name apart; never fails, names of no known kind come back as OTHER."""
    if len(key) > MAX_KEY_LENGTH:
        return PeftKey(key, "", TensorRole.OTHER, None)
    segments = [segment for segment in key.split(".") if segment not in _WRAPPERS]
    if segments[:1] == ["module"]:  # distributed data parallel and DeepSpeed wrap the whole model
        del segments[0]
    name = ".".join(segments).removeprefix(PREFIX)
    for ending, role in _ENDINGS:
        match = ending.fullmatch(name)
        if match is not None:
            return PeftKey(key, match["module"] or "", role, match.groupdict().get("adapter"))
    return PeftKey(key, name.rpartition(".")[0], TensorRole.OTHER, None)


def strip_containers(module: str) -> str:
    """`module` without the containers at its start: "model.layers.0.mlp" becomes "layers.0.mlp"."""
    segments = module.split(".")
    while len(segments) > 1 and segments[0] in _CONTAINERS:
        del segments[0]
    return ".".join(segments)

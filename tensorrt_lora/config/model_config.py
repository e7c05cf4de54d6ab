"""What a decoder checkpoint looks like, in our own field names.

Owns the one translation from Hugging Face configs. Built by the engine, read by `models/` and `modules/`;
nothing else reads an HF config's fields. Must not know weights or devices.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, PretrainedConfig

from tensorrt_lora.config.model_quantization import ModelQuantization
from tensorrt_lora.config.quant_config import QuantConfig
from tensorrt_lora.config.quantization_reader import read_quantization

# The names that HF configs leave out of `architectures` when they are made in memory.
_ARCHITECTURE_OF_MODEL_TYPE: dict[str, str] = {
    "arcee": "ArceeForCausalLM",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
SUPPORTED_ARCHITECTURES: tuple[str, ...] = tuple(sorted(_ARCHITECTURE_OF_MODEL_TYPE.values()))
# What transformers raises for a config.json that is damaged, or has a field of a wrong kind.
_CONFIG_ERRORS = (OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, StrictDataclassError)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape of one dense decoder; sizes are element counts.

    `intermediate_size` is the width between the MLP's projections. `rope_parameters` is transformers' dict of
    that name, and `hidden_act` its name of the activation.
    """

    architecture: str
    model_dir: Path | None
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    rope_parameters: dict[str, object]
    hf_config: PretrainedConfig
    max_position_embeddings: int
    tie_word_embeddings: bool
    qk_norm: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    hidden_act: str
    sliding_window: int | None
    eos_token_ids: tuple[int, ...]
    quantization: ModelQuantization | None

    @property
    def torch_dtype(self) -> torch.dtype | None:
        """The type that the checkpoint says its weights have; None when it does not say."""
        dtype = getattr(self.hf_config, "dtype", None)
        return getattr(torch, dtype) if isinstance(dtype, str) else dtype

    @property
    def max_seq_len(self) -> int:
        """Longest sequence with exact results, in tokens: attention is full, so a sliding window ends it."""
        return min(self.max_position_embeddings, self.sliding_window or self.max_position_embeddings)

    @classmethod
    def from_hf(cls, hf_config: PretrainedConfig, model_dir: Path | None = None) -> "ModelConfig":
        """Translate a transformers config.

        The end tokens of `model_dir`'s generation_config.json, where there is one, are added to the config's.

        Raises ValueError for an architecture or a quantisation that is not served, or head counts that do not divide.
        """
        architecture = _architecture(hf_config)
        num_heads = hf_config.num_attention_heads
        num_kv_heads = getattr(hf_config, "num_key_value_heads", None) or num_heads
        if num_heads % num_kv_heads:
            raise ValueError(f"num_attention_heads={num_heads} is not a multiple of num_key_value_heads={num_kv_heads}")
        attention_bias = bool(getattr(hf_config, "attention_bias", False))
        # Qwen2 has the biases of q, k and v built in and none on o; its config has no field for either.
        is_qwen2 = architecture == "Qwen2ForCausalLM"
        return cls(
            architecture=architecture,
            model_dir=model_dir,
            vocab_size=hf_config.vocab_size,
            hidden_size=hf_config.hidden_size,
            num_layers=hf_config.num_hidden_layers,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=getattr(hf_config, "head_dim", None) or hf_config.hidden_size // num_heads,
            intermediate_size=hf_config.intermediate_size,
            rms_norm_eps=hf_config.rms_norm_eps,
            rope_parameters=_rope_parameters(hf_config),
            hf_config=hf_config,
            max_position_embeddings=hf_config.max_position_embeddings,
            tie_word_embeddings=bool(hf_config.tie_word_embeddings),
            qk_norm=architecture == "Qwen3ForCausalLM",
            qkv_bias=is_qwen2 or attention_bias,
            o_bias=not is_qwen2 and attention_bias,
            mlp_bias=bool(getattr(hf_config, "mlp_bias", False)),
            hidden_act=hf_config.hidden_act,
            sliding_window=_sliding_window(hf_config),
            eos_token_ids=_eos_token_ids(hf_config, model_dir),
            quantization=read_quantization(_quantization_fields(hf_config), model_dir),
        )

    def with_quant_config(self, quant_config: QuantConfig | None) -> "ModelConfig":
        """This config with weights quantised as they are loaded; None changes nothing.

        Raises ValueError when the checkpoint is quantised already.
        """
        if quant_config is None:
            return self
        if self.quantization is not None:
            raise ValueError(
                f"the checkpoint is already quantised ({self.quantization.quant_algo}): leave quant_config out"
            )
        return replace(self, quantization=ModelQuantization.from_quant_config(quant_config))

    @classmethod
    def from_pretrained(cls, model: str) -> "ModelConfig":
        """Read the config of a checkpoint directory or a hub id. Raises ValueError without one that is served."""
        directory = Path(model)
        if directory.is_dir():
            if not (directory / "config.json").is_file():
                raise ValueError(
                    f"model directory {model!r} has no config.json: give a Hugging Face checkpoint directory"
                )
            try:
                return cls.from_hf(AutoConfig.from_pretrained(directory), directory)
            except _CONFIG_ERRORS as error:
                raise ValueError(f"{directory / 'config.json'} cannot be used: {error}") from error
        try:
            hf_config = AutoConfig.from_pretrained(model)
        except _CONFIG_ERRORS as error:
            raise ValueError(f"model {model!r} is neither a directory nor a readable hub id: {error}") from error
        return cls.from_hf(hf_config)


def _architecture(hf_config: PretrainedConfig) -> str:
    named = hf_config.architectures or [_ARCHITECTURE_OF_MODEL_TYPE.get(hf_config.model_type, hf_config.model_type)]
    for architecture in named:
        if architecture in SUPPORTED_ARCHITECTURES:
            return str(architecture)
    raise ValueError(f"architecture {named[0]!r} is not supported; supported: {', '.join(SUPPORTED_ARCHITECTURES)}")


def _quantization_fields(hf_config: PretrainedConfig) -> dict[str, object] | None:
    """`quantization_config`, a dict in a config that was read from a file, an object in one made in memory."""
    quantization = getattr(hf_config, "quantization_config", None)
    return quantization if quantization is None or isinstance(quantization, dict) else quantization.to_dict()


def _rope_parameters(hf_config: PretrainedConfig) -> dict[str, object]:
    """transformers 5 keeps one dict; version 4 kept theta and scaling apart, and named the type `type`."""
    parameters = getattr(hf_config, "rope_parameters", None)
    if parameters is not None:
        return dict(parameters)
    scaling = dict(getattr(hf_config, "rope_scaling", None) or {})
    scaling["rope_type"] = scaling.pop("type", scaling.get("rope_type", "default"))
    return {"rope_theta": getattr(hf_config, "rope_theta", 10000.0), **scaling}


def _sliding_window(hf_config: PretrainedConfig) -> int | None:
    window = getattr(hf_config, "sliding_window", None)
    layer_types = getattr(hf_config, "layer_types", None)
    if not getattr(hf_config, "use_sliding_window", True) or (layer_types and "sliding_attention" not in layer_types):
        return None
    return window


def _eos_token_ids(hf_config: PretrainedConfig, model_dir: Path | None) -> tuple[int, ...]:
    """The config's end tokens, then generation_config.json's own: chat models end a turn with these."""
    found = _as_ids(hf_config.eos_token_id)
    file = None if model_dir is None else model_dir / "generation_config.json"
    if file is not None and file.is_file():
        found += _as_ids(json.loads(file.read_text(encoding="utf-8")).get("eos_token_id"))
    return tuple(dict.fromkeys(found))


def _as_ids(value: int | list[int] | None) -> list[int]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]

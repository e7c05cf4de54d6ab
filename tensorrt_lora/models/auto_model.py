"""From a config to a model: the table of architectures. Called by the engine and the benchmarks."""

import torch

from tensorrt_lora.attention_backend import get_attention_backend
from tensorrt_lora.config.model_config import ModelConfig
from tensorrt_lora.models.modeling_arcee import ArceeForCausalLM
from tensorrt_lora.models.modeling_decoder import DecoderModelForCausalLM
from tensorrt_lora.models.modeling_llama import LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM
from tensorrt_lora.models.modeling_qwen3 import Qwen3ForCausalLM

MODEL_CLASSES: dict[str, type[DecoderModelForCausalLM]] = {
    cls.__name__: cls
    for cls in (ArceeForCausalLM, LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)
}


def create_model(
    config: ModelConfig,
    *,
    dtype: torch.dtype,
    device: torch.device,
    attn_backend: str,
    max_seq_len: int | None = None,
) -> DecoderModelForCausalLM:
    """The model of `config.architecture` with uninitialised weights, to be loaded or drawn.

    Args:
        config: the model's shape.
        dtype: of weights and activations.
        device: where weights live.
        attn_backend: "VANILLA" or "FLASHINFER".
        max_seq_len: longest sequence to serve; None means the config's `max_position_embeddings`.

    Raises:
        ValueError: the backend, the rope type or the activation is not served.
    """
    assert config.architecture in MODEL_CLASSES, f"{config.architecture} passed ModelConfig without a model class"
    model = MODEL_CLASSES[config.architecture](
        config,
        dtype=dtype,
        device=device,
        attn_backend=get_attention_backend(attn_backend),
        max_positions=max_seq_len or config.max_position_embeddings,
    )
    return model.eval()

"""Llama and the architectures that differ from it in their configs alone (SmolLM2 is a Llama)."""

from tensorrt_lora.models.modeling_decoder import DecoderModelForCausalLM


class LlamaForCausalLM(DecoderModelForCausalLM):
    """The decoder as it is: grouped heads, gated MLP."""


class MistralForCausalLM(LlamaForCausalLM):
    """Llama with a sliding window in older checkpoints; sequences within the window are served."""


class Qwen2ForCausalLM(LlamaForCausalLM):
    """Llama with biases on q, k and v."""

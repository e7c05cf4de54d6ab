"""Qwen3 (dense)."""

from tensorrt_lora.models.modeling_decoder import DecoderModelForCausalLM


class Qwen3ForCausalLM(DecoderModelForCausalLM):
    """Gated MLP, an RMSNorm over each query and key head, heads * head_dim independent of the hidden size."""

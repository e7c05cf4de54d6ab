"""The arithmetic of a prefill step without LoRA, by which its time becomes a speed."""

from collections.abc import Sequence

from tensorrt_lora.config.model_config import ModelConfig


def prefill_flops(config: ModelConfig, prompt_lens: Sequence[int]) -> int:
    """Multiplications and additions of the projections, of causal attention, and of the head for one row a prompt.

    Of a model with a gated MLP. Norms, rotary embedding and activation, far below a percent, do not count.
    """
    attention_width = config.num_heads * config.head_dim
    kv_width = config.num_kv_heads * config.head_dim
    weights = config.hidden_size * (2 * attention_width + 2 * kv_width + 3 * config.intermediate_size)
    # Scores and the weighted sum: each a product over the head's width for every pair of a token and one not after it.
    pairs = sum(length * (length + 1) // 2 for length in prompt_lens)
    layer = 2 * weights * sum(prompt_lens) + 2 * 2 * attention_width * pairs
    return config.num_layers * layer + 2 * config.hidden_size * config.vocab_size * len(prompt_lens)

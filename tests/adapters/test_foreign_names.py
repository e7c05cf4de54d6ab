import pytest

from tensorrt_lora.adapters.foreign_names import explain_format, explain_other
from tensorrt_lora.adapters.peft_keys import MAX_KEY_LENGTH

_MODULE = "model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta", "trained token embeddings"),
        (f"base_model.model.{_MODULE}.lora_E", "AdaLoRA is not served"),
        ("layers.3.attn.q_proj.lora_a.weight", "this is torchtune's naming"),
        ("layers.3.mlp.w1.lora_b.weight", "this is torchtune's naming"),
        ("layers.3.attention.wq.lora_A.weight", "this is Mistral's own naming"),
        ("layers.3.feed_forward.w2.weight", "this is Mistral's own naming"),
        (f"{_MODULE}.lora_a", "this is MLX's naming"),
        ("model.layers.0.self_attention.adapter_layer.lora_kqv_adapter.linear_in.weight", "this is NeMo's naming"),
        ("lora_unet_down_blocks_0_attn1_to_q.lora_down.weight", "this is kohya's naming"),
        ("lora_te_text_model_encoder.alpha", "this is kohya's naming"),
        (f"{_MODULE}.hada_w1_a", "this is another PEFT method"),
        ("prompt_embeddings", "this is another PEFT method"),
        ("base_model.model.score.weight", "fully trained modules are not served"),
        ("base_model.model.lm_head.modules_to_save.weight", "fully trained modules are not served"),
        ("base_model.model.model.layers.0.input_layernorm.weight", "trained norms are not served"),
        ("model.norm.weight", "trained norms are not served"),
        (f"base_model.model.{_MODULE}.lora_A", "this is not how PEFT names a LoRA tensor"),
        (f"base_model.model.{_MODULE}.base_layer.weight", "this is a weight of the base model"),
        ("base_model.model.model.layers.0.foo.weight", "this is no LoRA tensor"),
        ("a" * (MAX_KEY_LENGTH + 1), f"the name has more than {MAX_KEY_LENGTH} characters"),
    ],
)
def test_a_stranger_is_explained(key, reason):
    assert explain_other(key).startswith(reason)


def test_only_whole_formats_explain_a_module_that_the_model_lacks():
    assert explain_format("layers.0.attention.wq.lora_A.weight") is not None
    assert explain_format(f"{_MODULE}.lora_A.weight") is None

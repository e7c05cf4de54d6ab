import pytest

from tensorrt_lora.adapters.peft_keys import TensorRole, explain_other, parse_key, strip_containers

_MODULE = "model.layers.0.self_attn.q_proj"
_PATH = "layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("key", "module"),
    [
        (f"base_model.model.{_MODULE}.lora_A.weight", _MODULE),
        (f"{_MODULE}.lora_A.weight", _MODULE),
        (f"base_model.model.{_MODULE}.lora_A.default.weight", _MODULE),
        (f"{_MODULE}.lora_A.policy.weight", _MODULE),
        (f"module.base_model.model.{_MODULE}.lora_A.weight", _MODULE),
        (f"_orig_mod.base_model.model.{_MODULE}.lora_A.weight", _MODULE),
        (f"base_model.model._orig_mod.{_MODULE}.lora_A.weight", _MODULE),
        (
            "base_model.model.model.layers.0._checkpoint_wrapped_module.self_attn.q_proj.lora_A.weight",
            _MODULE,
        ),
        (
            "_fsdp_wrapped_module.base_model.model.model.layers.0._fsdp_wrapped_module.self_attn.q_proj.lora_A.weight",
            _MODULE,
        ),
        (f"base_model.model.language_model.{_MODULE}.lora_A.weight", f"language_model.{_MODULE}"),
        (f"language_model.{_MODULE}.lora_A.weight", f"language_model.{_MODULE}"),
        (f"base_model.model.model.language_model.{_PATH}.lora_A.weight", f"model.language_model.{_PATH}"),
        (f"base_model.model.{_PATH}.lora_A.weight", _PATH),
    ],
)
def test_every_spelling_leads_to_the_same_module(key, module):
    parsed = parse_key(key)
    assert (parsed.module, parsed.path, parsed.role) == (module, _PATH, TensorRole.LORA_A)
    assert parsed.is_plain == (key == f"base_model.model.{module}.lora_A.weight")


def test_the_adapters_name_inside_a_key_is_kept():
    assert parse_key(f"{_MODULE}.lora_B.policy.weight").adapter_name == "policy"
    assert parse_key(f"{_MODULE}.lora_B.weight").adapter_name is None


@pytest.mark.parametrize(
    "key",
    [
        "base_model.model.model.layers.0.self_attn.rotary_emb.inv_freq",
        "rope_freqs.weight",
        "model.rotary_emb.inv_freq",
    ],
)
def test_buffers_of_the_base_are_known(key):
    assert parse_key(key).role is TensorRole.BUFFER


@pytest.mark.parametrize(
    "key", ["", ".", "module", "_orig_mod", "lora_A.weight", "a.lora_C.weight", f"{_MODULE}.lora_A"]
)
def test_other_names_never_fail_and_are_no_lora_tensors(key):
    assert parse_key(key).role is TensorRole.OTHER


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("model", "model"),
        ("model.model.layers.0", "layers.0"),
        ("vision_model.layers.0", "vision_model.layers.0"),
    ],
)
def test_only_containers_at_the_start_are_stripped(name, path):
    assert strip_containers(name) == path


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        (f"base_model.model.{_MODULE}.lora_magnitude_vector", "DoRA is not served yet"),
        (f"base_model.model.{_MODULE}.lora_magnitude_vector.default.weight", "DoRA is not served yet"),
        (f"base_model.model.{_MODULE}.lora_B.bias", "a bias on lora_B is not served yet"),
        (f"base_model.model.{_MODULE}.lora_B.default.bias", "a bias on lora_B is not served yet"),
        ("base_model.model.model.embed_tokens.lora_embedding_A", "LoRA on embeddings is not served yet"),
        (
            "base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta",
            "trained token embeddings",
        ),
        (f"base_model.model.{_MODULE}.lora_E", "AdaLoRA is not served"),
        ("layers.3.attn.q_proj.lora_a.weight", "this is torchtune's naming"),
        ("layers.3.mlp.w1.lora_b.weight", "this is torchtune's naming"),
        (f"{_MODULE}.lora_a", "this is MLX's naming"),
        ("base_model.model.lm_head.weight", "fully trained modules are not served yet"),
        ("base_model.model.score.weight", "fully trained modules are not served yet"),
        ("base_model.model.lm_head.modules_to_save.weight", "fully trained modules are not served yet"),
        ("base_model.model.model.layers.0.input_layernorm.weight", "trained norms are not served"),
        (f"base_model.model.{_MODULE}.base_layer.bias", "trained base biases are not served yet"),
        ("base_model.model.model.layers.0.foo.weight", "this is no LoRA tensor"),
    ],
)
def test_a_stranger_is_explained(key, reason):
    assert parse_key(key).role is TensorRole.OTHER
    assert explain_other(key).startswith(reason)

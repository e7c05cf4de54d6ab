import pytest

from tensorrt_lora.adapters.peft_keys import MAX_KEY_LENGTH, TensorRole, parse_key, strip_containers

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
    ("end", "role", "adapter"),
    [
        ("lora_B.bias", TensorRole.LORA_BIAS, None),
        ("lora_B.default.bias", TensorRole.LORA_BIAS, "default"),
        ("lora_magnitude_vector", TensorRole.MAGNITUDE, None),
        ("lora_magnitude_vector.weight", TensorRole.MAGNITUDE, None),
        ("lora_magnitude_vector.default", TensorRole.MAGNITUDE, "default"),
        ("lora_magnitude_vector.default.weight", TensorRole.MAGNITUDE, "default"),
        ("base_layer.bias", TensorRole.BASE_BIAS, None),
        ("bias", TensorRole.BASE_BIAS, None),
    ],
)
def test_what_a_module_has_besides_its_pair(end, role, adapter):
    parsed = parse_key(f"base_model.model.{_MODULE}.{end}")
    assert (parsed.module, parsed.path, parsed.role, parsed.adapter_name) == (_MODULE, _PATH, role, adapter)
    assert parsed.is_plain == (adapter is None and not end.endswith("vector.weight"))
    assert not parsed.is_lora


@pytest.mark.parametrize(
    ("name", "module", "role"),
    [
        ("model.embed_tokens.lora_embedding_A", "model.embed_tokens", TensorRole.EMBEDDING_A),
        ("model.embed_tokens.lora_embedding_B.default", "model.embed_tokens", TensorRole.EMBEDDING_B),
        ("lm_head.lora_A.weight", "lm_head", TensorRole.LORA_A),
        ("model.embed_tokens.base_layer.weight", "model.embed_tokens", TensorRole.BASE_WEIGHT),
        ("model.embed_tokens.weight", "model.embed_tokens", TensorRole.BASE_WEIGHT),
        ("lm_head.base_layer.weight", "lm_head", TensorRole.BASE_WEIGHT),
        ("lm_head.weight", "lm_head", TensorRole.BASE_WEIGHT),
        ("lm_head.modules_to_save.weight", "lm_head.modules_to_save", TensorRole.OTHER),
    ],
)
def test_the_embedding_and_the_head(name, module, role):
    parsed = parse_key(f"base_model.model.{name}")
    assert (parsed.module, parsed.role) == (module, role)


def test_a_name_of_many_megabytes_is_not_looked_at():
    assert parse_key(f"{'a.' * MAX_KEY_LENGTH}lora_A.weight").role is TensorRole.OTHER

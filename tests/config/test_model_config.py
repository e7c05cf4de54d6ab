"""ModelConfig: each architecture's facts from transformers' configs, and the checkpoints that are refused."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import (
    ArceeConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from tensorrt_lora.config.model_config import ModelConfig

_SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": 3,
}


def test_sizes() -> None:
    config = ModelConfig.from_hf(LlamaConfig(**_SIZES, rms_norm_eps=1e-5))
    assert (config.vocab_size, config.hidden_size, config.intermediate_size) == (64, 32, 48)
    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim) == (2, 4, 2, 8)
    assert (config.rms_norm_eps, config.max_position_embeddings, config.max_seq_len) == (1e-5, 256, 256)
    assert (config.eos_token_ids, config.model_dir, config.hidden_act) == ((3,), None, "silu")


@pytest.mark.parametrize(
    ("hf_config", "architecture", "qk_norm", "qkv_bias", "o_bias", "mlp_bias", "hidden_act"),
    [
        (Qwen3Config(**_SIZES), "Qwen3ForCausalLM", True, False, False, False, "silu"),
        (Qwen3Config(**_SIZES, attention_bias=True), "Qwen3ForCausalLM", True, True, True, False, "silu"),
        (LlamaConfig(**_SIZES), "LlamaForCausalLM", False, False, False, False, "silu"),
        (
            LlamaConfig(**_SIZES, attention_bias=True, mlp_bias=True),
            "LlamaForCausalLM",
            False,
            True,
            True,
            True,
            "silu",
        ),
        (MistralConfig(**_SIZES), "MistralForCausalLM", False, False, False, False, "silu"),
        (Qwen2Config(**_SIZES), "Qwen2ForCausalLM", False, True, False, False, "silu"),
        (ArceeConfig(**_SIZES), "ArceeForCausalLM", False, False, False, False, "relu2"),
    ],
)
def test_architecture_facts(
    hf_config: PretrainedConfig,
    architecture: str,
    qk_norm: bool,
    qkv_bias: bool,
    o_bias: bool,
    mlp_bias: bool,
    hidden_act: str,
) -> None:
    config = ModelConfig.from_hf(hf_config)
    assert config.architecture == architecture
    assert (config.qk_norm, config.qkv_bias, config.o_bias) == (qk_norm, qkv_bias, o_bias)
    assert (config.mlp_bias, config.hidden_act) == (mlp_bias, hidden_act)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, None])
def test_type_of_the_checkpoint(tmp_path: Path, dtype: torch.dtype | None) -> None:
    LlamaConfig(**_SIZES, architectures=["LlamaForCausalLM"], dtype=dtype).save_pretrained(tmp_path)
    assert ModelConfig.from_pretrained(str(tmp_path)).torch_dtype == dtype


def test_head_dim_may_differ_from_hidden_size_over_heads() -> None:
    assert ModelConfig.from_hf(Qwen3Config(**_SIZES, head_dim=16)).head_dim == 16


@pytest.mark.parametrize("tied", [True, False])
def test_tied_embeddings(tied: bool) -> None:
    assert ModelConfig.from_hf(Qwen3Config(**_SIZES, tie_word_embeddings=tied)).tie_word_embeddings is tied


def test_rope_of_version_5() -> None:
    rope = {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}
    assert ModelConfig.from_hf(LlamaConfig(**_SIZES, rope_parameters=rope)).rope_parameters == rope


@pytest.mark.parametrize(
    ("old", "rope"),
    [
        ({"rope_theta": 5e5}, {"rope_type": "default", "rope_theta": 5e5}),
        (
            {"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 2.0}},
            {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4},
        ),
        (
            {"rope_theta": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
            {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4},
        ),
    ],
)
def test_rope_of_version_4(old: dict[str, object], rope: dict[str, object]) -> None:
    hf_config = SimpleNamespace(
        **_SIZES,
        **old,
        architectures=["LlamaForCausalLM"],
        model_type="llama",
        rms_norm_eps=1e-6,
        tie_word_embeddings=False,
        hidden_act="silu",
    )
    assert ModelConfig.from_hf(hf_config).rope_parameters == rope


@pytest.mark.parametrize(
    ("hf_config", "window", "max_seq_len"),
    [
        (MistralConfig(**_SIZES, sliding_window=128), 128, 128),
        (MistralConfig(**_SIZES, sliding_window=1024), 1024, 256),
        (MistralConfig(**_SIZES, sliding_window=None), None, 256),
        (Qwen2Config(**_SIZES, use_sliding_window=False, sliding_window=128), None, 256),
        (Qwen2Config(**_SIZES, use_sliding_window=True, sliding_window=128, max_window_layers=1), 128, 128),
        (Qwen3Config(**_SIZES, use_sliding_window=True, sliding_window=128, max_window_layers=2), None, 256),
    ],
)
def test_sliding_window_ends_the_sequence(hf_config: PretrainedConfig, window: int | None, max_seq_len: int) -> None:
    config = ModelConfig.from_hf(hf_config)
    assert (config.sliding_window, config.max_seq_len) == (window, max_seq_len)


def test_end_tokens_of_generation_config_are_added(tmp_path: Path) -> None:
    Qwen3Config(**_SIZES | {"eos_token_id": 5}, architectures=["Qwen3ForCausalLM"]).save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 5]}))
    config = ModelConfig.from_pretrained(str(tmp_path))
    assert config.eos_token_ids == (5, 7)
    assert config.model_dir == tmp_path


@pytest.mark.parametrize(("eos", "ids"), [(None, ()), (4, (4,)), ([4, 9], (4, 9))])
def test_end_tokens_of_the_config(eos: int | list[int] | None, ids: tuple[int, ...]) -> None:
    assert ModelConfig.from_hf(LlamaConfig(**_SIZES | {"eos_token_id": eos})).eos_token_ids == ids


@pytest.mark.parametrize("architectures", [None, ["GPT2LMHeadModel"]])
def test_refuses_an_unknown_architecture(architectures: list[str] | None) -> None:
    with pytest.raises(ValueError) as error:
        ModelConfig.from_hf(GPT2Config(architectures=architectures))
    assert "'gpt2'" in str(error.value) or "'GPT2LMHeadModel'" in str(error.value)
    assert "supported: ArceeForCausalLM, LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3" in str(
        error.value
    )


def test_refuses_a_quantisation_that_is_not_served() -> None:
    hf_config = LlamaConfig(**_SIZES, quantization_config={"quant_method": "awq"})
    with pytest.raises(ValueError, match=r"the checkpoint is quantised \(awq\), which is not served: use one in FP8"):
        ModelConfig.from_hf(hf_config)


def test_refuses_heads_that_do_not_divide() -> None:
    with pytest.raises(ValueError, match="num_attention_heads=4 is not a multiple of num_key_value_heads=3"):
        ModelConfig.from_hf(LlamaConfig(**_SIZES | {"num_key_value_heads": 3}))


def test_refuses_a_directory_without_a_config(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no config\.json"):
        ModelConfig.from_pretrained(str(tmp_path))


def test_refuses_a_name_that_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match="model 'no/such-model' is neither a directory nor a readable hub id"):
        ModelConfig.from_pretrained("no/such-model")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not a valid JSON file"),
        (b"\xff\xfe", "not a valid JSON file"),
        (b"3", "not iterable"),
        (b"[]", "model_type"),
        (json.dumps({"model_type": "qwen3", "num_hidden_layers": "two"}).encode(), "num_hidden_layers"),
        (json.dumps({"model_type": "qwen3", "rope_parameters": 3}).encode(), "rope_parameters"),
        (json.dumps({"model_type": "qwen3", "architectures": 3}).encode(), "not iterable"),
        (json.dumps({"model_type": "nonsense"}).encode(), "nonsense"),
    ],
)
def test_a_damaged_config_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(ValueError, match="cannot be used") as error:
        ModelConfig.from_pretrained(str(tmp_path))
    assert str(file) in str(error.value) and message in str(error.value)

"""LoraConfig: TensorRT-LLM's fields and defaults, the counts that bind each other, and what is refused."""

import pytest

from tensorrt_lora.config.lora_config import LoraConfig


def test_fields_and_defaults_are_tensorrt_llms() -> None:
    assert LoraConfig().model_dump() == {
        "lora_dir": [],
        "lora_ckpt_source": "hf",
        "max_lora_rank": 64,
        "lora_target_modules": [],
        "trtllm_modules_to_hf_modules": {},
        "max_loras": None,
        "max_cpu_loras": None,
        "swap_gate_up_proj_lora_b_weight": True,
        "overlap_lora_and_base": False,
        "cuda_graph_specialize_lora": True,
    }


@pytest.mark.parametrize(("max_loras", "slots"), [(None, 8), (1, 1), (128, 128)])
def test_num_slots(max_loras: int | None, slots: int) -> None:
    assert LoraConfig(max_loras=max_loras).num_slots == slots


def test_counts_may_be_equal() -> None:
    assert LoraConfig(max_loras=4, max_cpu_loras=4).max_cpu_loras == 4


def test_name_map_changes_single_names() -> None:
    names = LoraConfig(trtllm_modules_to_hf_modules={"attn_dense": "out_proj"}).hf_modules
    assert (names["attn_dense"], names["attn_q"]) == ("out_proj", "q_proj")


def test_nemo_is_a_known_source() -> None:
    assert LoraConfig(lora_ckpt_source="nemo").lora_ckpt_source == "nemo"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_lora_rank": 0}, "max_lora_rank\n  Input should be greater than or equal to 1"),
        ({"max_lora_rank": True}, "max_lora_rank\n  Input should be a valid integer"),
        ({"max_loras": 0}, "max_loras\n  Input should be greater than or equal to 1"),
        ({"max_cpu_loras": 0}, "max_cpu_loras\n  Input should be greater than or equal to 1"),
        ({"max_loras": 4, "max_cpu_loras": 3}, "max_cpu_loras=3 is less than max_loras=4: "),
        ({"max_cpu_loras": 7}, "max_cpu_loras=7 is less than max_loras=8 (the default): "),
        ({"lora_ckpt_source": "gguf"}, "lora_ckpt_source\n  Input should be 'hf' or 'nemo'"),
        ({"lora_target_modules": ["attn_x"]}, "unknown module 'attn_x'; known: attn_q, attn_k, attn_v,"),
        ({"lora_target_modules": ["q_proj"]}, "unknown module 'q_proj'; use 'attn_q'"),
        ({"lora_target_modules": ["attn_q", "attn_q"]}, "lora_target_modules names 'attn_q' twice"),
        ({"lora_target_modules": "attn_q"}, "lora_target_modules\n  Input should be a valid list"),
        (
            {"trtllm_modules_to_hf_modules": {"up": "up_proj"}},
            "trtllm_modules_to_hf_modules names the unknown module 'up'",
        ),
        ({"trtllm_modules_to_hf_modules": {"attn_q": ""}}, "trtllm_modules_to_hf_modules['attn_q'] is ''"),
        (
            {"trtllm_modules_to_hf_modules": {"attn_q": "self_attn.q_proj"}},
            "the last part of the module's path",
        ),
        ({"overlap_lora_and_base": 1}, "overlap_lora_and_base\n  Input should be a valid boolean"),
        ({"swap_gate_up_proj": True}, "swap_gate_up_proj\n  Extra inputs are not permitted"),
    ],
)
def test_refuses(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError) as error:
        LoraConfig(**settings)
    assert message in str(error.value)

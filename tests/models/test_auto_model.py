import pytest
import torch

from tensorrt_lora.config.model_config import SUPPORTED_ARCHITECTURES, ModelConfig
from tensorrt_lora.models.auto_model import MODEL_CLASSES, create_model
from tensorrt_lora.models.modeling_decoder import DecoderModelForCausalLM
from tests.support.tiny_models import make_tiny_model


def create(family: str, *, attn_backend: str = "VANILLA", max_seq_len: int | None = None) -> DecoderModelForCausalLM:
    return create_model(
        ModelConfig.from_hf(make_tiny_model(family).config, None),
        dtype=torch.bfloat16,
        device=torch.device("cpu"),
        attn_backend=attn_backend,
        max_seq_len=max_seq_len,
    )


def test_every_supported_architecture_has_a_class() -> None:
    assert sorted(MODEL_CLASSES) == sorted(SUPPORTED_ARCHITECTURES)


@pytest.mark.parametrize(
    ("family", "name"),
    [("qwen3", "Qwen3ForCausalLM"), ("mistral", "MistralForCausalLM"), ("arcee", "ArceeForCausalLM")],
)
def test_class_dtype_and_mode(family: str, name: str) -> None:
    model = create(family)
    assert type(model).__name__ == name and not model.training
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


def test_positions_are_tabulated_up_to_the_longest_sequence() -> None:
    def positions(max_seq_len: int | None) -> int:
        return (
            create("llama", max_seq_len=max_seq_len)
            .get_buffer("model.layers.1.self_attn.rotary_emb.cos_sin_cache")
            .shape[0]
        )

    assert positions(None) == 512
    assert positions(100) == 100


def test_unknown_attention_backend_is_refused() -> None:
    with pytest.raises(ValueError, match="attention backend 'EAGER' does not exist"):
        create("llama", attn_backend="EAGER")

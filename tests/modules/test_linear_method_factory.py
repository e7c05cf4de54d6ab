import pytest

from tensorrt_lora.config.model_quantization import ModelQuantization
from tensorrt_lora.modules.fp8_linear_method import Fp8BlockLinearMethod, Fp8LinearMethod
from tensorrt_lora.modules.linear_method import LinearMethod, UnquantizedLinearMethod
from tensorrt_lora.modules.linear_method_factory import LinearMethodFactory


def test_no_quantisation() -> None:
    assert isinstance(LinearMethodFactory().create("q_proj"), UnquantizedLinearMethod)


@pytest.mark.parametrize(
    ("algo", "method"),
    [
        ("FP8_PER_TENSOR", Fp8LinearMethod),
        ("FP8_STATIC", Fp8LinearMethod),
        ("FP8_BLOCK_SCALES", Fp8BlockLinearMethod),
    ],
)
def test_the_method_of_each_format(algo, method: type[LinearMethod]) -> None:
    assert isinstance(LinearMethodFactory(ModelQuantization(algo), "model.layers.0.mlp").create("up_proj"), method)


def test_excluded_by_the_whole_name() -> None:
    quantization = ModelQuantization("FP8_PER_TENSOR", ("model.layers.1.mlp",))
    excluded = LinearMethodFactory(quantization, "model.layers.1.mlp").create("gate_proj", "up_proj")
    assert isinstance(excluded, UnquantizedLinearMethod)
    assert isinstance(LinearMethodFactory(quantization, "model.layers.11.mlp").create("up_proj"), Fp8LinearMethod)


def test_a_part_alone_cannot_be_excluded() -> None:
    quantization = ModelQuantization("FP8_PER_TENSOR", ("k_proj",))
    with pytest.raises(ValueError, match="k_proj of a would stay unquantised, but q_proj, k_proj are stored as one"):
        LinearMethodFactory(quantization, "a").create("q_proj", "k_proj")

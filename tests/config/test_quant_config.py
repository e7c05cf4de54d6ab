import pytest
from pydantic import ValidationError

from tensorrt_lora.config.llm_args import TorchLlmArgs
from tensorrt_lora.config.quant_config import QuantConfig


def test_from_plain_settings() -> None:
    args = TorchLlmArgs(model="m", quant_config={"quant_algo": "FP8_PER_TENSOR", "exclude_modules": ["o_proj"]})
    assert args.quant_config == QuantConfig(quant_algo="FP8_PER_TENSOR", exclude_modules=["o_proj"])
    assert TorchLlmArgs(model="m").quant_config is None


@pytest.mark.parametrize("algo", ["fp8", "INT8", None])
def test_unknown_formats_are_refused(algo: str | None) -> None:
    with pytest.raises(ValidationError, match="FP8_PER_TENSOR"):
        QuantConfig(quant_algo=algo)


def test_static_activations_need_a_calibration() -> None:
    static = QuantConfig(quant_algo="FP8_STATIC")
    with pytest.raises(ValidationError, match=r"FP8_STATIC needs calibrated activation scales.*use FP8_PER_TENSOR"):
        TorchLlmArgs(model="m", quant_config=static)
    assert TorchLlmArgs(model="m", quant_config=static, load_format="dummy").quant_config == static
